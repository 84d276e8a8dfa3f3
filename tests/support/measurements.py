"""A measurement of a benchmark run, for the rules about it."""

from typing import Any

from supervisor_tasks.benchmarking.benchmark_run import (
    BenchmarkState,
    Measurement,
    job_name,
    name_beginning,
)

NAME = job_name(name_beginning("0x" + "A" * 40, "main"), 3, "0123456789abcdef", "hpl")


def one(state: BenchmarkState, **about: Any) -> Measurement:
    """A measurement of hpl in that state, the first of run 3."""
    given: dict[str, Any] = {
        "id": 1,
        "run_id": 3,
        "benchmark": "hpl",
        "job_name": NAME,
        "options": ("--time=7",),
    }
    return Measurement(state=state, **given | about)
