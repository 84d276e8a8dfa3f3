"""IOR: bandwidth and operations a second of the volumes. fio measures them where a node has no ior."""

import re
import statistics
from collections.abc import Mapping
from functools import partial
from itertools import islice

from benchmarks.json_output import document, inner
from benchmarks.partial_results import Part, collected
from benchmarks.plan import Mode, Plan
from benchmarks.rank_layout import RankLayout, chosen, nodelist
from benchmarks.rendering import JobScript, container_words, rendered
from benchmarks.result import MeasuredValue, Reading, UnreadableOutputError
from benchmarks.sections import ScriptOutput, Section, number, shown, taken_apart

_HEADER = "access,bw(MiB/s),IOPS,"
_VERSION = re.compile(r"\n(IOR-[0-9][0-9A-Za-z.+-]{0,30})")
_TRANSFER_MB = 2
_MOST_RANKS_PER_NODE = 64
_FIO_MB = 256
_MIB = 2**20
_ROW = re.compile(r"\n[ \t]*(write|read),([^\n]*)")
_MOST_ROWS = 200  # of 100 iterations
_WAYS = ("write", "read")


def render(plan: Plan) -> JobScript:
    """Render the job with one rank for each CPU, at most 64 on a node."""
    nodes = chosen(plan.nodes, single_node=plan.ior_single_node)
    ranks_per_node = min(_MOST_RANKS_PER_NODE, *(node.cpus for node in nodes))
    layout = RankLayout(nodes, ranks_per_node, nodelist(plan, nodes))
    block_mb = plan.ior_block_mb_per_node // layout.ranks_per_node // _TRANSFER_MB * _TRANSFER_MB
    facts = {
        "container": plan.mode is Mode.CONTAINER,
        "container_flags": container_words(plan, plan.images.ior),
        "ranks": layout.ranks,
        "ranks_per_node": layout.ranks_per_node,
        "single_node": len(nodes) == 1,
        "block_mb": max(_TRANSFER_MB, block_mb),
        "fio_mb": min(_FIO_MB, max(_TRANSFER_MB, plan.ior_block_mb_per_node)),
    }
    return JobScript(
        script=rendered("ior.sh.j2", plan, facts),
        nodes=len(nodes),
        ntasks_per_node=layout.ranks_per_node,
        cpus_per_task=1,
        gpus_per_node=0,
        time_limit_min=plan.time_limit_min,
        nodelist=layout.nodelist,
    )


def parse(output: bytes, nonce: str) -> Reading:
    """Return the results of the volumes that can be read. Raises UnreadableOutputError if there is none."""
    found = taken_apart(output, nonce)
    parts = list[Part]()
    for key in found.facts:
        kind, _, volume = key.partition(".")
        if kind == "volume":
            parts += _parts_of(volume, found)
    if not parts:
        raise UnreadableOutputError(
            f"no volume is named in the output; found {', '.join(found.sections) or 'no section'}"
        )
    return collected(found, parts, tool=", ".join(_tools(found)))


def _tools(found: ScriptOutput) -> dict[str, None]:
    """The tools that name themselves in their output, each once, in the order of the output."""
    versions = [_VERSION.search("\n" + section.text) for section in found.sections.values()]
    return dict.fromkeys(version[1] for version in versions if version)


def _parts_of(volume: str, found: ScriptOutput) -> list[Part]:
    """The parts of a volume: two by fio, or one by ior."""
    if any(f"fio.{volume}.{way}" in found.sections for way in _WAYS):
        return [
            Part(f"fio.{volume}.{way}", _labels(volume, way), partial(_fio, volume=volume, way=way)) for way in _WAYS
        ]
    labels = tuple(label for way in _WAYS for label in _labels(volume, way))
    return [Part(f"ior.{volume}", labels, partial(_ior, volume=volume))]


def _labels(volume: str, way: str) -> tuple[str, str]:
    return f"storage.{volume}.{way}.bw.mibps", f"storage.{volume}.{way}.iops"


def _measured(volume: str, way: str, mibps: float, iops: float) -> dict[str, MeasuredValue]:
    bandwidth, operations = _labels(volume, way)
    return {bandwidth: MeasuredValue(mibps, "MiB/s"), operations: MeasuredValue(iops, "1/s")}


def _ior(section: Section, *, volume: str) -> Mapping[str, MeasuredValue]:
    """Means over the iterations. The columns after IOPS differ from version to version and are not read."""
    if section.why_unusable:
        raise UnreadableOutputError(f"ior on {volume}: {section.why_unusable}")
    found = dict[str, MeasuredValue]()
    for way, of_way in _rows_of_ior(section, volume).items():
        columns = [[*row.split(",", 2), "", ""][:2] for row in of_way]
        mibps = statistics.fmean(number(bandwidth, f"ior's bandwidth of {way}") for bandwidth, _ in columns)
        iops = statistics.fmean(number(operations, f"ior's IOPS of {way}") for _, operations in columns)
        found |= _measured(volume, way, mibps, iops)
    return found


def _rows_of_ior(section: Section, volume: str) -> dict[str, list[str]]:
    """The rows of ior's table by way: as many of each, and one at least."""
    rows: dict[str, list[str]] = {way: [] for way in _WAYS}
    for row in islice(_ROW.finditer(section.text, max(0, section.text.find(_HEADER))), _MOST_ROWS + 1):
        rows[row[1]].append(row[2])
    counts = {len(of_way) for of_way in rows.values()}
    if _HEADER not in section.text or len(counts) > 1 or not 0 < sum(counts) <= _MOST_ROWS // 2:
        seen = ", ".join(f"{len(of_way)} of {way}" for way, of_way in rows.items())
        raise UnreadableOutputError(
            f"ior on {volume} printed {seen}; expected `{_HEADER}...` and as many of both; {shown(section.text)}"
        )
    return rows


def _fio(section: Section, *, volume: str, way: str) -> Mapping[str, MeasuredValue]:
    if section.why_unusable:
        raise UnreadableOutputError(f"fio on {volume}: {section.why_unusable}")
    found = document(section.text, "fio")
    bytes_per_s = inner(found, f"fio's bandwidth of {way}", "jobs", 0, way, "bw_bytes")
    iops = inner(found, f"fio's IOPS of {way}", "jobs", 0, way, "iops")
    return _measured(volume, way, bytes_per_s / _MIB, iops)
