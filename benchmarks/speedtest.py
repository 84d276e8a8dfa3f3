"""Ookla's speedtest: upload and download, in bytes / 1e6 a second under the name
`mbps`, as in the whole field.

A native run without that program measures against a configured iperf3 server, or leaves
both labels out by name.
"""

from collections.abc import Mapping
from functools import partial

from benchmarks.json_output import document, documents, number_at
from benchmarks.partial_results import Part, collected
from benchmarks.plan import Mode, Plan
from benchmarks.rendering import JobScript, container_words, rendered
from benchmarks.result import MeasuredValue, Reading, UnreadableOutputError
from benchmarks.sections import Section, shown, split_output

# by direction
_LABELS = {"upload": "network.upload.bw.mbps", "download": "network.download.bw.mbps"}
_UNIT = "MB/s"
_MEGA = 1e6
_BITS = 8
_LIMIT_MIN = 30
_MEMORY_MB = 1000


def render(plan: Plan) -> JobScript:
    """Render a job with one rank on one node."""
    host, _, port = plan.iperf3_server.rpartition(":")
    facts = {
        "container": plan.mode is Mode.CONTAINER,
        "container_flags": container_words(plan, plan.images.speedtest),
        "iperf3_host": host.strip("[]"),
        "iperf3_port": port,
    }
    return JobScript(
        script=rendered("speedtest.sh.j2", plan, facts),
        nodes=1,
        ntasks_per_node=1,
        cpus_per_task=1,
        gpus_per_node=0,
        time_limit_min=min(_LIMIT_MIN, plan.time_limit_min),
        mem_mb_per_node=min(_MEMORY_MB, *(node.mem_mb for node in plan.nodes)),
        exclusive=False,
    )


def parse(output: bytes, nonce: str) -> Reading:
    """Return both labels. Raises UnreadableOutputError; a retry does not help."""
    found = split_output(output, nonce)
    if any(name.startswith("iperf3.") for name in found.sections):
        parts = [
            Part(f"iperf3.{name}", (label,), partial(_iperf3, label=label))
            for name, label in _LABELS.items()
        ]
        return collected(found, parts, tool="iperf3")
    return collected(
        found,
        [Part("speedtest", tuple(_LABELS.values()), _ookla)],
        tool="speedtest (Ookla)",
    )


def _ookla(section: Section) -> Mapping[str, MeasuredValue]:
    section.require_usable("speedtest")
    results = list[object]()
    for result in documents(section.text, "speedtest"):
        if isinstance(result, dict) and result.get("type") == "result":
            results.append(result)
    if len(results) != 1:
        raise UnreadableOutputError(
            f"speedtest printed {len(results)} results; expected one; {shown(section.text)}"
        )
    measured = dict[str, MeasuredValue]()
    for direction, label in _LABELS.items():
        bytes_per_s = number_at(
            results[0], f"speedtest's {direction}", direction, "bandwidth"
        )
        measured[label] = MeasuredValue(bytes_per_s / _MEGA, _UNIT)
    return measured


def _iperf3(section: Section, *, label: str) -> Mapping[str, MeasuredValue]:
    """The rate at which data arrived, in either direction."""
    section.require_usable("iperf3")
    found = document(section.text, "iperf3")
    if isinstance(found, dict) and "error" in found:  # iperf3 still ends with status 0
        raise UnreadableOutputError(f"iperf3: {shown(str(found['error']))}")
    bits_per_s = number_at(
        found, "iperf3's rate", "end", "sum_received", "bits_per_second"
    )
    return {label: MeasuredValue(bits_per_s / _BITS / _MEGA, _UNIT)}
