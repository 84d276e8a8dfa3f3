"""A job that the operator settles: from any state it ends so, and SLURM keeps nothing
of it.
"""

import pytest

from supervisor_tasks.jobs.events import (
    ChainStatusObserved,
    Event,
    OperatorAbandonedEffect,
    OperatorSettledJob,
    ScriptFetched,
    SlurmCompleted,
    SlurmRunningObserved,
    SubmitRejected,
    SubmitStarted,
    Submitted,
)
from supervisor_tasks.jobs.model import (
    ChainStatus,
    EffectKind,
    Job,
    Outcome,
    SlurmId,
    State,
    StatusUpdate,
    obsolete_effects,
    pending_reports,
)
from supervisor_tasks.jobs.state_machine import advance
from tests.support.ledger import claim

WORD = Outcome(status=ChainStatus.FAILED, elapsed_s=180, reason="the node burnt down")
SETTLED = OperatorSettledJob(WORD)
FETCHED, STARTED, SUBMITTED = (
    ScriptFetched("s", ""),
    SubmitStarted(10),
    Submitted(SlurmId(7)),
)


def lived(*events: Event) -> tuple[Job, set[EffectKind]]:
    """The job and what is left to do for it, as the ledger keeps it."""
    job: Job | None = None
    left: set[EffectKind] = set()
    for event in (claim(1), *events):
        job, effects = advance(job, event)
        assert job is not None
        left = (left | {effect.kind for effect in effects}) - obsolete_effects(job)
    assert job is not None
    return job, left


@pytest.mark.parametrize(
    ("before", "cancelled"),
    [
        ((), True),
        ((FETCHED,), True),
        ((FETCHED, STARTED), True),
        ((FETCHED, STARTED, SUBMITTED), True),
        ((FETCHED, STARTED, SUBMITTED, SlurmRunningObserved()), True),
        ((FETCHED, STARTED, SubmitRejected("no")), False),
        (
            (
                FETCHED,
                STARTED,
                SUBMITTED,
                SlurmCompleted(Outcome(status=ChainStatus.FINISHED)),
            ),
            False,
        ),
    ],
    ids=["CLAIMED", "READY", "SUBMITTING", "QUEUED", "RUNNING", "REFUSED", "ENDED"],
)
def test_settled__in_any_state__is_reported_and_cancelled(
    before: tuple[Event, ...], cancelled: bool
) -> None:
    job, left = lived(*before, SETTLED)
    assert (job.state, job.outcome, job.settled_by_operator) == (
        State.ENDED,
        WORD,
        True,
    )
    assert pending_reports(job)[-1] == StatusUpdate(
        ChainStatus.FAILED, 3, "the node burnt down"
    )
    assert EffectKind.REPORT in left
    assert (EffectKind.CANCEL in left) is cancelled


def test_settled__slurm_ends_it_later__the_word_stands() -> None:
    late = SlurmCompleted(Outcome(status=ChainStatus.FINISHED, elapsed_s=600))
    job, _ = lived(FETCHED, STARTED, SUBMITTED, SETTLED, late)
    assert job.outcome == WORD


def test_settled__sbatch_answers_later__slurm_is_told_to_stop() -> None:
    job, left = lived(FETCHED, STARTED, SETTLED, SUBMITTED)
    assert job.slurm_id == 7
    assert EffectKind.CANCEL in left


def test_settled__the_contract_has_decided__changes_nothing() -> None:
    final = lived(FETCHED, ChainStatusObserved(ChainStatus.CANCELLED, (9, 0)))
    assert (
        lived(FETCHED, ChainStatusObserved(ChainStatus.CANCELLED, (9, 0)), SETTLED)
        == final
    )


def test_operator_abandoned_effect__by_the_operator__changes_nothing_of_the_job() -> (
    None
):
    assert lived(
        FETCHED, OperatorAbandonedEffect(EffectKind.NOTIFY_CUSTOMER, "x")
    ) == lived(FETCHED)
