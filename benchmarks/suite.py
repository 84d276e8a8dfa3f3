"""The benchmarks by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks import machine
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
    benchmark.name: benchmark for benchmark in (Benchmark("machine", machine.render, machine.parse),)
}
