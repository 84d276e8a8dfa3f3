"""IOR: bandwidth and operations a second of the volumes. fio measures them where a node
has no ior.
"""

import re
import statistics
from collections.abc import Mapping
from functools import partial
from itertools import islice

from benchmarks.json_output import document, number_at
from benchmarks.partial_results import Part, collected
from benchmarks.plan import Mode, Plan
from benchmarks.rank_layout import RankLayout, chosen, nodelist
from benchmarks.rendering import JobScript, container_words, rendered
from benchmarks.result import MeasuredValue, Reading, UnreadableOutputError
from benchmarks.sections import ScriptOutput, Section, number, shown, split_output

_HEADER = "access,bw(MiB/s),IOPS,"
_VERSION = re.compile(r"\n(IOR-[0-9][0-9A-Za-z.+-]{0,30})")
_TRANSFER_MB = 2
_MOST_RANKS_PER_NODE = 64
_FIO_MB = 256
_MIB = 2**20
_ROW = re.compile(r"\n[ \t]*(write|read),([^\n]*)")
_MOST_ROWS = 200  # of 100 iterations
_ACCESSES = ("write", "read")  # in the order of the labels


def render(plan: Plan) -> JobScript:
    """Render the job with one rank for each CPU, at most 64 on a node."""
    nodes = chosen(plan.nodes, single_node=plan.ior_single_node)
    ranks_per_node = min(_MOST_RANKS_PER_NODE, *(node.cpus for node in nodes))
    layout = RankLayout(nodes, ranks_per_node, nodelist(plan, nodes))
    block_mb = plan.ior_block_mb_per_node // layout.ranks_per_node
    block_mb = block_mb // _TRANSFER_MB * _TRANSFER_MB
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
    """Return the results of the volumes that can be read. Raises UnreadableOutputError
    if there is none; a retry does not help.
    """
    found = split_output(output, nonce)
    parts = list[Part]()
    for key in found.facts:
        kind, _, volume = key.partition(".")
        if kind == "volume":
            parts += _parts_of(volume, found)
    if not parts:
        raise UnreadableOutputError(
            f"no volume is named in the output; found {', '.join(found.sections) or 'no section'}"
        )
    return collected(found, parts, tool=found.tools(_VERSION))


def _parts_of(volume: str, found: ScriptOutput) -> list[Part]:
    """The parts of a volume: two by fio, or one by ior."""
    by_fio = list[Part]()
    labels = list[str]()
    for access in _ACCESSES:
        labels_of_access = _labels(volume, access)
        labels += labels_of_access
        by_fio.append(
            Part(
                f"fio.{volume}.{access}",
                labels_of_access,
                partial(_fio, volume=volume, access=access),
            )
        )
    if any(part.section in found.sections for part in by_fio):
        return by_fio
    return [Part(f"ior.{volume}", tuple(labels), partial(_ior, volume=volume))]


def _labels(volume: str, access: str) -> tuple[str, str]:
    return f"storage.{volume}.{access}.bw.mibps", f"storage.{volume}.{access}.iops"


def _measured(
    volume: str, access: str, mibps: float, iops: float
) -> dict[str, MeasuredValue]:
    bandwidth, operations = _labels(volume, access)
    return {
        bandwidth: MeasuredValue(mibps, "MiB/s"),
        operations: MeasuredValue(iops, "1/s"),
    }


def _ior(section: Section, *, volume: str) -> Mapping[str, MeasuredValue]:
    """Means over the iterations. The columns after IOPS differ from version to version
    and are not read.
    """
    section.require_usable(f"ior on {volume}")
    means = dict[str, MeasuredValue]()
    for access, rows in _rows_of_ior(section, volume).items():
        columns = [[*row.split(",", 2), "", ""] for row in rows]
        bandwidths = [
            number(bandwidth, f"ior's bandwidth of {access}")
            for bandwidth, *_ in columns
        ]
        operations = [
            number(iops, f"ior's IOPS of {access}") for _, iops, *_ in columns
        ]
        means |= _measured(
            volume, access, statistics.fmean(bandwidths), statistics.fmean(operations)
        )
    return means


def _rows_of_ior(section: Section, volume: str) -> dict[str, list[str]]:
    """The rows of ior's table by access: as many of each, and one at least."""
    table_begin = section.text.find(_HEADER)
    table = _ROW.finditer(section.text, max(0, table_begin))
    rows: dict[str, list[str]] = {"write": [], "read": []}
    for row in islice(table, _MOST_ROWS + 1):
        rows[row[1]].append(row[2])
    writes, reads = len(rows["write"]), len(rows["read"])
    if table_begin < 0 or writes != reads or not 0 < writes <= _MOST_ROWS // 2:
        raise UnreadableOutputError(
            f"ior on {volume} printed {writes} of write, {reads} of read; expected `{_HEADER}...` and as many of both;"
            f" {shown(section.text)}"
        )
    return rows


def _fio(section: Section, *, volume: str, access: str) -> Mapping[str, MeasuredValue]:
    section.require_usable(f"fio on {volume}")
    found = document(section.text, "fio")
    bytes_per_s = number_at(
        found, f"fio's bandwidth of {access}", "jobs", 0, access, "bw_bytes"
    )
    iops = number_at(found, f"fio's IOPS of {access}", "jobs", 0, access, "iops")
    return _measured(volume, access, bytes_per_s / _MIB, iops)
