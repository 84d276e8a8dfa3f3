"""The benchmarks by name, the short ones first."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks import hpl, ior, node_facts, osu, speedtest
from benchmarks.plan import Plan
from benchmarks.rendering import JobScript
from benchmarks.result import Reading


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One job of a run.

    `parse` takes the job's output and the plan's nonce. For any bytes it returns a
    Reading or raises UnreadableOutputError. A Reading may be empty: then all its labels
    are left out, each with the reason.
    """

    name: str
    render: Callable[[Plan], JobScript]
    parse: Callable[[bytes, str], Reading]


SUITE: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("machine", node_facts.render, node_facts.parse),
        Benchmark("speedtest", speedtest.render, speedtest.parse),
        Benchmark("osu", osu.render, osu.parse),
        Benchmark("ior", ior.render, ior.parse),
        Benchmark("hpl", hpl.render, hpl.parse),
    )
}
