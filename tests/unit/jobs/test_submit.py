"""The order of a submission, with a ledger and a SLURM that only write down what they
are asked; and how many scripts one command takes.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.effect_group import EffectOutcome, Group, Start
from supervisor_tasks.jobs.model import (
    Address,
    Definition,
    EffectKind,
    Job,
    JobId,
    SlurmId,
    State,
)
from supervisor_tasks.jobs.submit import number_within, submit
from supervisor_tasks.jobs.trace import NoTraces
from supervisor_tasks.ledger.journal import Past
from supervisor_tasks.ledger.outbox import OpenEffect
from supervisor_tasks.slurm.guarded_command import LoginClock
from supervisor_tasks.slurm.ssh import our_clock_s

READY = Job(
    job_id=JobId("0x" + "1" * 64),
    customer=Address("0x" + "2" * 40),
    provider=Address("0x" + "3" * 40),
    claim_key="claim:0",
    definition=Definition(
        gpus=0,
        mem_per_cpu_mb=100,
        cpus_per_task=1,
        ntasks=1,
        batch_location_hash="hash",
    ),
    time_limit_min=60,
    state=State.READY,
)
EFFECT = OpenEffect(1, READY.job_id, EffectKind.SUBMIT, 1, 1)
CLOCK = LoginClock(1000, 5.0)


class Steps:
    """What a submission asks the ledger and SLURM for, in order. `after` is the job as
    it is when the start is committed.
    """

    def __init__(self, after: Job, clock: Callable[[str], LoginClock]) -> None:
        self.done = list[object]()
        self._after = after
        self._clock = clock
        self._committed_s = 0.0

    def group(self) -> Group:
        """A group of one job that is ready."""
        cluster = SimpleNamespace(
            clock=SimpleNamespace(of=self._clock),
            homes=SimpleNamespace(require_own=lambda _: None),
            submissions=SimpleNamespace(
                submit_batch=self._submit_batch, window_s=23.0, token_window_s=0.0
            ),
            settings=SimpleNamespace(submit_key=""),
        )
        ledger = SimpleNamespace(
            switches=SimpleNamespace(reason=lambda _: None),
            journal=SimpleNamespace(before_submission=lambda _: {READY.job_id: Past()}),
            scripts=lambda _: {READY.job_id: "#!/bin/sh"},
        )
        slurm = SimpleNamespace(
            cluster=cluster, last_check=SimpleNamespace(checked_at_s=float("inf"))
        )
        context = SimpleNamespace(ledger=ledger, slurm=slurm, tracer=NoTraces())
        return Group(cast(WorkerContext, context), [(READY, EFFECT)], self._record)

    def _record(self, item: EffectOutcome | Start) -> None:
        if isinstance(item, Start):
            self.done.append("commit")
            self._committed_s = our_clock_s()
            item.committed.set_result({READY.job_id: self._after})
        else:
            self.done.append(item.event or item.error)

    def _submit_batch(
        self, user: str, requests: Any, clock: LoginClock, begun_s: float, told: Any
    ) -> None:
        assert begun_s <= self._committed_s
        self.done.append((user, [job_id for job_id, _ in requests], clock))
        told(READY.job_id, SlurmId(7))


def test_submit__committed__is_handed_over_after_the_commit() -> None:
    def clock(_: str) -> LoginClock:
        steps.done.append("clock")
        return CLOCK

    steps = Steps(replace(READY, state=State.SUBMITTING), clock)
    submit(steps.group())
    handed_over = (READY.customer, [READY.job_id], CLOCK)
    assert steps.done[:3] == ["clock", "commit", handed_over]
    (submitted,) = steps.done[3:]
    assert getattr(submitted, "slurm_id", None) == SlurmId(7)


def test_submit__login_is_refused__nothing_has_begun() -> None:
    refused = TransientError("refused")

    def clock(_: str) -> LoginClock:
        raise refused

    steps = Steps(READY, clock)
    submit(steps.group())
    assert steps.done == [refused]


def test_submit__cancelled_before_the_commit__is_not_handed_over() -> None:
    steps = Steps(replace(READY, state=State.ENDED), lambda _: CLOCK)
    submit(steps.group())
    assert steps.done[0] == "commit"
    assert [type(done).__name__ for done in steps.done[1:]] == ["SubmitOutcomeUnknown"]


@pytest.mark.parametrize(
    ("sizes", "number"),
    [
        ([1], 1),
        ([11], 1),
        ([11, 1], 1),
        ([4, 3, 3], 3),
        ([4, 3, 4, 1], 2),
        ([0, 10, 0, 0, 1], 4),
        ([0, 11], 1),
    ],
)
def test_number_within__ten_at_most__the_first_ones_and_at_least_one(
    sizes: list[int], number: int
) -> None:
    assert number_within(sizes, 10) == number
