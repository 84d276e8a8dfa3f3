"""OSU micro-benchmarks: the network's latency and bandwidth between two nodes, and its
latency between all.
"""

import re
from dataclasses import dataclass
from functools import partial

from benchmarks.partial_results import Part, collected
from benchmarks.plan import Mode, Plan
from benchmarks.rank_layout import RankLayout, nodelist
from benchmarks.rendering import JobScript, container_words, rendered
from benchmarks.result import MeasuredValue, Reading, UnreadableOutputError
from benchmarks.sections import Section, number, shown, split_output

_ROW = re.compile(r"\n[ \t]*([0-9]{1,12})[ \t]+(\S{1,40})")
_TITLE = re.compile(r"\n# (OSU[^\n]{0,60}? v[0-9][0-9.a-z]{0,15})\b")
_LARGEST_WITHOUT_DOUBT = 1024  # bytes; a table that ends earlier was cut off


@dataclass(frozen=True, slots=True)
class Test:
    """One program: its section in the output, its label, its unit and a word of its
    title.
    """

    section: str
    program: str
    label: str
    unit: str
    title: str


TESTS = (
    Test("latency", "osu_latency", "network.p2p.latency.us", "us", "Latency Test"),
    Test(
        "bibw",
        "osu_bibw",
        "network.p2p.bw.mbps",
        "MB/s",
        "Bi-Directional Bandwidth Test",
    ),
    Test(
        "alltoall", "osu_alltoall", "network.all-to-all.latency.us", "us", "All-to-All"
    ),
)


def render(plan: Plan) -> JobScript:
    """Render the job with one rank on each node; with two ranks if there is only one
    node.
    """
    single = len(plan.nodes) == 1
    layout = RankLayout(plan.nodes, 2 if single else 1, nodelist(plan, plan.nodes))
    pair_only = ("latency", "bibw")
    tests = [
        {
            "section": test.section,
            "program": test.program,
            "label": test.label,
            "ranks": 2 if test.section in pair_only else layout.ranks,
        }
        for test in TESTS
    ]
    facts = {
        "container": plan.mode is Mode.CONTAINER,
        "container_flags": container_words(plan, plan.images.osu),
        "ranks_per_node": layout.ranks_per_node,
        "single_node": single,
        "tests": tests,
    }
    return JobScript(
        script=rendered("osu.sh.j2", plan, facts),
        nodes=len(plan.nodes),
        ntasks_per_node=layout.ranks_per_node,
        cpus_per_task=1,
        gpus_per_node=0,
        time_limit_min=plan.time_limit_min,
    )


def parse(output: bytes, nonce: str) -> Reading:
    """Return the values at the largest message. Raises UnreadableOutputError if none of
    the three can be read; a retry does not help.
    """
    found = split_output(output, nonce)
    parts = [
        Part(test.section, (test.label,), partial(_largest, test=test))
        for test in TESTS
    ]
    return collected(found, parts, tool=found.tools(_TITLE))


def _largest(section: Section, *, test: Test) -> dict[str, MeasuredValue]:
    section.require_usable(test.program)
    rows = [(int(row[1]), row[2]) for row in _ROW.finditer("\n" + section.text)]
    largest, shown_value = max(rows, key=lambda row: row[0], default=(0, ""))
    if largest < _LARGEST_WITHOUT_DOUBT:
        raise UnreadableOutputError(
            f"{test.program} printed no line `size value` of {_LARGEST_WITHOUT_DOUBT} bytes or more; {shown(section.text)}"
        )
    value = number(shown_value, f"{test.program} at {largest} bytes")
    return {test.label: MeasuredValue(value, test.unit)}
