"""The order of a benchmark's submission, with a ledger and a SLURM that only write down
what they are asked.
"""

from types import SimpleNamespace
from typing import cast

import pytest

from supervisor_tasks.benchmarking.benchmark_run import (
    BenchmarkRun,
    BenchmarkState,
    Measurement,
    RunState,
)
from supervisor_tasks.benchmarking.submit_benchmark import submit_benchmark
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.slurm.guarded_command import LoginClock
from supervisor_tasks.slurm.ssh import our_clock_s

RUN = BenchmarkRun(id=1, why="first", state=RunState.RUNNING)
WAITING = Measurement(
    id=1, run_id=1, benchmark="hpl", state=BenchmarkState.WAITING, job_name="name"
)
CLOCK = LoginClock(1000, 5.0)


class Steps:
    """What a submission asks the ledger and SLURM for, in order."""

    def __init__(self, *, started: bool, lets_in: bool = True) -> None:
        self.done = list[object]()
        self._started = started
        self._lets_in = lets_in
        self._committed_s = 0.0

    def submit(self) -> None:
        """Carry out the step."""
        jobs = SimpleNamespace(
            user="bench", listed=lambda _: [], clock=self._clock, submit=self._submit
        )
        benchmarks = SimpleNamespace(
            start_submission=self._start, store_update=lambda *_: False
        )
        context = SimpleNamespace(
            ledger=SimpleNamespace(benchmarks=benchmarks),
            benchmarking=SimpleNamespace(jobs=jobs),
        )
        submit_benchmark(cast(WorkerContext, context), RUN, WAITING)

    def _clock(self) -> LoginClock:
        if not self._lets_in:
            raise TransientError("refused")
        self.done.append("clock")
        return CLOCK

    def _start(self, _: Measurement, user: str) -> bool:
        self.done.append(f"commit as {user}")
        self._committed_s = our_clock_s()
        return self._started

    def _submit(
        self, measurement: Measurement, clock: LoginClock, begun_s: float
    ) -> SlurmId:
        assert begun_s <= self._committed_s
        self.done.append((measurement.state, measurement.run_as, clock))
        return SlurmId(7)


def test_submit_benchmark__committed__is_handed_over_after_the_commit() -> None:
    steps = Steps(started=True)
    steps.submit()
    handed_over = (BenchmarkState.SUBMITTING, "bench", CLOCK)
    assert steps.done == ["clock", "commit as bench", handed_over]


def test_submit_benchmark__another_worker_was_faster__is_not_handed_over() -> None:
    steps = Steps(started=False)
    steps.submit()
    assert steps.done == ["clock", "commit as bench"]


def test_submit_benchmark__login_is_refused__nothing_has_begun() -> None:
    steps = Steps(started=True, lets_in=False)
    with pytest.raises(TransientError):
        steps.submit()
    assert steps.done == []
