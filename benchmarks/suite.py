"""The benchmarks by name, the short ones first."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks import hpl, ior, machine, osu, speedtest
from benchmarks.plan import Plan
from benchmarks.reading import Reading
from benchmarks.script import JobScript


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One job of a run.

    `parse` takes the job's output and the plan's nonce; any bytes give a Reading or UnreadableOutputError. A Reading may be
    empty: then all its labels are left out, each with the reason.
    """

    name: str
    render: Callable[[Plan], JobScript]
    parse: Callable[[bytes, str], Reading]


SUITE: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("machine", machine.render, machine.parse),
        Benchmark("speedtest", speedtest.render, speedtest.parse),
        Benchmark("osu", osu.render, osu.parse),
        Benchmark("ior", ior.render, ior.parse),
        Benchmark("hpl", hpl.render, hpl.parse),
    )
}
