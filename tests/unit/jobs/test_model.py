"""What follows from a job's state: the reports that the contract has not got, and the
effects that have no purpose any more.
"""

import pytest

from supervisor_tasks.jobs.events import (
    CancelRequested,
    ChainStatusObserved,
    Event,
    SlurmCompleted,
)
from supervisor_tasks.jobs.model import (
    ChainStatus,
    EffectKind,
    Outcome,
    StatusUpdate,
    obsolete_effects,
    pending_reports,
)
from tests.support.job_histories import TO_QUEUED, TO_RUNNING, lived, then

FINISHED = Outcome(status=ChainStatus.FINISHED, elapsed_s=125, exit_status=0)
FAILED = Outcome(
    status=ChainStatus.FAILED, elapsed_s=61, exit_status=768, reason="exit code 3"
)


def test_pending_reports__end_seen_before_the_start_was_reported__include_running() -> (
    None
):
    job, _ = lived(*TO_QUEUED, SlurmCompleted(FAILED))
    assert pending_reports(job) == (
        StatusUpdate(ChainStatus.RUNNING),
        StatusUpdate(ChainStatus.FAILED, 1, "exit code 3", 768),
    )


def test_pending_reports__cancelled_before_it_ran__is_one_call_of_zero_minutes() -> (
    None
):
    job, _ = lived(*TO_QUEUED, SlurmCompleted(Outcome(status=ChainStatus.CANCELLED)))
    assert pending_reports(job) == (StatusUpdate(ChainStatus.CANCELLED),)


def test_pending_reports__cancelled_after_it_ran__bills_what_it_used() -> None:
    job, _ = lived(
        *TO_RUNNING,
        SlurmCompleted(Outcome(status=ChainStatus.CANCELLED, elapsed_s=180)),
    )
    assert [step.minutes for step in pending_reports(job)] == [0, 3]


@pytest.mark.parametrize(
    "events",
    [
        (CancelRequested(), SlurmCompleted(FINISHED)),
        (SlurmCompleted(FINISHED), CancelRequested()),
    ],
)
def test_pending_reports__cancelled_as_slurm_ends_it__reports_and_bills_slurms_end(
    events: tuple[Event, Event],
) -> None:
    job, _ = lived(*TO_RUNNING, *events)
    assert pending_reports(job)[-1] == StatusUpdate(ChainStatus.FINISHED, 2, "", 0)


def test_obsolete_effects__contract_says_what_is_true__has_the_report() -> None:
    job, _ = lived(*TO_RUNNING)
    assert EffectKind.REPORT not in obsolete_effects(job)
    assert EffectKind.REPORT in obsolete_effects(
        then(job, ChainStatusObserved(ChainStatus.RUNNING))
    )
