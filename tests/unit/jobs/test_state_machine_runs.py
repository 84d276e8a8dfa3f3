"""What a requeue, and a job that is bigger than paid, make of a job."""

from dataclasses import replace

import pytest

from supervisor_tasks.jobs.events import (
    CallbackReceived,
    CancelRequested,
    ChainStatusObserved,
    EarlierRunsReported,
    EffectCompleted,
    Event,
    LaterRunEnded,
    LimitApplied,
    MoreThanPaid,
    OperatorAbandonedEffect,
    OperatorSettledJob,
    RequeueForbidden,
    RequeueNotForbidden,
    RunsAfterItsEnd,
    SlurmCompleted,
    SlurmJobIdentified,
    SlurmPendingObserved,
    SlurmRunningObserved,
    ToppedUp,
)
from supervisor_tasks.jobs.model import (
    ChainStatus,
    Effect,
    EffectKind,
    Job,
    Outcome,
    SlurmId,
    State,
    obsolete_effects,
    pending_reports,
)
from supervisor_tasks.jobs.runs import RunEnd, Sighting
from supervisor_tasks.jobs.state_machine import MAX_PUT_BACK_TIMES
from tests.support.job_histories import TO_QUEUED, TO_RUNNING, lived, step, then

T = 1_000_000
ID = SlurmId(7)
END = RunEnd(130, T + 400)
CANCELLED = Outcome(status=ChainStatus.CANCELLED, elapsed_s=9)


def first(elapsed_s: int) -> Sighting:
    return Sighting(submit_s=T, start_s=T, elapsed_s=elapsed_s, seen_s=T + elapsed_s)


def requeued(at_s: int, elapsed_s: int = 0) -> Sighting:
    start_s = T + at_s if elapsed_s else None
    return Sighting(
        submit_s=T + at_s,
        restarts=1,
        start_s=start_s,
        elapsed_s=elapsed_s,
        seen_s=T + at_s + elapsed_s,
    )


def run_once() -> Job:
    """A job of ten paid minutes that runs."""
    job = lived(*TO_RUNNING)[0]
    return then(
        then(job, SlurmJobIdentified(ID, T, first(1))),
        SlurmRunningObserved("RUNNING", first(30)),
    )


def run_again(at_s: int) -> tuple[Job, tuple[Effect, ...]]:
    return step(run_once(), SlurmJobIdentified(ID, T + at_s, requeued(at_s)))


@pytest.mark.parametrize(
    ("at_s", "limit_min"), [(61, 9), (75, 9), (125, 8), (599, 1), (700, 1)]
)
def test_requeued__after_the_first_minute__the_next_run_gets_what_is_left(
    at_s: int, limit_min: int
) -> None:
    job, effects = run_again(at_s)
    assert effects == (Effect(EffectKind.TOP_UP),)
    assert (job.run_limit_min, job.limit_min, job.earlier_s) == (limit_min, 10, at_s)
    applied, effects = step(job, LimitApplied(limit_min))
    assert (applied.applied_limit_min, effects) == (limit_min, ())


def test_requeued_at_once__in_the_first_minute__leaves_the_limit_as_it_is() -> None:
    assert run_again(20)[1] == ()


def test_topped_up__after_a_requeue__is_added_to_what_is_left() -> None:
    job = then(run_again(125)[0], LimitApplied(8))
    longer, effects = step(job, ToppedUp("top-up:0", 5))
    assert (longer.run_limit_min, longer.limit_min, effects) == (
        13,
        15,
        (Effect(EffectKind.TOP_UP),),
    )


def test_ended__after_a_requeue__all_runs_are_billed() -> None:
    job = then(
        run_again(75)[0],
        SlurmCompleted(Outcome(status=ChainStatus.FINISHED, elapsed_s=70)),
    )
    assert job.outcome is not None
    assert (job.outcome.elapsed_s, job.outcome.minutes) == (145, 2)


def test_earlier_run__reported_only_by_hooks__leaves_more_time_for_the_next_run() -> (
    None
):
    unseen = SlurmJobIdentified(ID, T + 500, replace(requeued(500), restarts=1), T)
    job = then(lived(*TO_RUNNING)[0], unseen)
    assert (job.earlier_s, job.run_limit_min) == (500, 2)
    told, effects = step(then(job, LimitApplied(2)), EarlierRunsReported((END,)))
    assert (told.earlier_s, told.run_limit_min, effects) == (
        130,
        8,
        (Effect(EffectKind.TOP_UP),),
    )
    assert step(told, EarlierRunsReported((END,))) == (told, ())


def test_ended__accounting_tells_of_the_earlier_runs__its_seconds_count() -> None:
    job = then(
        run_again(75)[0],
        SlurmCompleted(
            Outcome(status=ChainStatus.FINISHED, elapsed_s=70), 61, earlier_runs=1
        ),
    )
    assert job.outcome is not None
    assert job.outcome.elapsed_s == 131


def test_ended__first_seen_while_completing__accounting_counts_nothing_twice() -> None:
    completing = Sighting(submit_s=T, restarts=1, seen_s=T + 62)
    job = then(lived(*TO_RUNNING)[0], SlurmJobIdentified(ID, T, completing, T))
    job = then(job, SlurmJobIdentified(ID, T + 90, requeued(90)))
    ended = Outcome(status=ChainStatus.FINISHED, elapsed_s=10)
    job = then(job, SlurmCompleted(ended, 60, earlier_runs=1))
    assert job.outcome is not None
    assert job.outcome.elapsed_s == 70


def test_ended__accounting_has_fewer_runs_than_seen__the_seen_time_is_the_minimum() -> (
    None
):
    twice = then(
        run_again(75)[0],
        SlurmJobIdentified(ID, T + 200, replace(requeued(200), restarts=2)),
    )
    ended = Outcome(status=ChainStatus.FINISHED, elapsed_s=10)
    less, more = (
        then(twice, SlurmCompleted(ended, 61, earlier_runs=1)),
        then(twice, SlurmCompleted(ended, 300, earlier_runs=1)),
    )
    assert less.outcome is not None
    assert more.outcome is not None
    assert (less.outcome.elapsed_s, more.outcome.elapsed_s) == (
        twice.earlier_s + 10,
        310,
    )


def test_ended__its_owner_can_have_it_requeued__slurm_must_reject_that() -> None:
    finished = Outcome(status=ChainStatus.FINISHED, elapsed_s=70)
    ended, effects = step(run_once(), SlurmCompleted(finished, may_requeue=True))
    assert ended.outcome == finished
    assert Effect(EffectKind.CANCEL) in effects
    assert EffectKind.CANCEL not in obsolete_effects(ended)
    assert (
        Effect(EffectKind.CANCEL) not in step(run_once(), SlurmCompleted(finished))[1]
    )


FINISHED = Outcome(status=ChainStatus.FINISHED, elapsed_s=70)
REQUEUEABLE_END = SlurmCompleted(FINISHED, may_requeue=True)


def statuses(job: Job) -> list[ChainStatus]:
    """What the contract lacks."""
    return [update.status for update in pending_reports(job)]


@pytest.mark.parametrize(
    "decision",
    [
        RequeueForbidden(),
        RequeueNotForbidden(),
        OperatorAbandonedEffect(EffectKind.CANCEL, "seen"),
    ],
)
def test_ended__it_can_run_again__is_reported_after_slurm_must_reject_that(
    decision: Event,
) -> None:
    ended = then(run_once(), REQUEUEABLE_END)
    assert statuses(ended) == [ChainStatus.RUNNING]
    decided, effects = step(ended, decision)
    assert Effect(EffectKind.REPORT) in effects
    assert statuses(decided) == [ChainStatus.RUNNING, ChainStatus.FINISHED]
    assert decided.outcome == FINISHED
    # what SLURM rejects needs no cancel; where it cannot be told, the operator decides
    assert (EffectKind.CANCEL in obsolete_effects(decided)) is not isinstance(
        decision, RequeueNotForbidden
    )


def test_ended__cancel_from_before_its_end_is_done__the_report_waits_on() -> None:
    """The customer cancelled the job while it ran, and SLURM was not told to reject a
    requeue.
    """
    ended = then(run_once(), REQUEUEABLE_END)
    assert then(ended, EffectCompleted(EffectKind.CANCEL)) == ended
    assert EffectKind.CANCEL not in obsolete_effects(ended)


def test_requeue_forbidden__of_a_settled_job__its_report_waits_no_more() -> None:
    ended = then(run_once(), REQUEUEABLE_END)
    settled = then(ended, ChainStatusObserved(ChainStatus.FINISHED))
    assert not then(settled, RequeueForbidden()).may_run_again


def test_ended__it_can_run_again_and_the_operator_settles_it__is_reported() -> None:
    settled = Outcome(status=ChainStatus.CANCELLED, elapsed_s=9, reason="by hand")
    job = then(then(run_once(), REQUEUEABLE_END), OperatorSettledJob(settled))
    assert statuses(job)[-1] is ChainStatus.CANCELLED


@pytest.mark.parametrize(
    ("event", "billed_s"),
    [
        (LaterRunEnded(ID, T + 100, 50), 120),
        (LaterRunEnded(ID, T + 100, 5000), 600),  # the paid time
        (LaterRunEnded(ID, T, 50), 70),  # the run that ended
        (LaterRunEnded(SlurmId(8), T + 100, 50), 70),
    ],
)
def test_later_run_ended__before_the_report__is_billed_up_to_the_paid_time(
    event: LaterRunEnded, billed_s: int
) -> None:
    job = then(then(run_once(), REQUEUEABLE_END), event)
    assert statuses(job) == [ChainStatus.RUNNING]  # the requeue is not forbidden yet
    assert job.outcome == replace(FINISHED, elapsed_s=billed_s)
    # the same run once more: a second effect saw it, too
    assert then(job, event).outcome == job.outcome


def test_later_run_ended__after_more_time_than_was_paid__the_bill_stays() -> None:
    long = replace(FINISHED, elapsed_s=700)
    ended = then(run_once(), SlurmCompleted(long, may_requeue=True))
    assert then(ended, LaterRunEnded(ID, T + 100, 50)).outcome == long


@pytest.mark.parametrize("settled", [False, True])
def test_later_run_ended__report_was_not_held_back__the_bill_stays(
    settled: bool,
) -> None:
    ended = then(run_once(), SlurmCompleted(FINISHED))
    if settled:
        ended = then(ended, ChainStatusObserved(ChainStatus.FINISHED))
    assert then(ended, LaterRunEnded(ID, T + 100, 50)) == ended
    assert then(ended, RequeueNotForbidden()) == ended


def test_runs_after_its_end__its_report_waits__the_cancel_is_opened_again() -> None:
    ended = then(run_once(), REQUEUEABLE_END)
    assert step(ended, RunsAfterItsEnd(ID)) == (ended, (Effect(EffectKind.CANCEL),))


def test_ended__by_itself_while_being_stopped__keeps_its_end_and_gets_the_reason() -> (
    None
):
    stopped = then(
        run_once(), MoreThanPaid("GPUs: 2 instead of 1", limit_only=False, waits=False)
    )
    ended = then(
        stopped, SlurmCompleted(Outcome(status=ChainStatus.FINISHED, elapsed_s=70))
    )
    assert ended.outcome is not None
    assert ended.outcome.status is ChainStatus.FINISHED
    assert "GPUs: 2 instead of 1" in ended.status_message


@pytest.mark.parametrize(
    "look",
    [
        SlurmRunningObserved("RUNNING", requeued(500, 100)),
        SlurmPendingObserved("PENDING", requeued(600)),
    ],
)
def test_paid_time_is_used_up__after_a_requeue__is_cancelled_and_out_of_credits(
    look: SlurmRunningObserved | SlurmPendingObserved,
) -> None:
    assert look.run is not None
    job = then(
        run_once(),
        SlurmJobIdentified(
            ID, look.run.submit_s, replace(look.run, elapsed_s=0, start_s=None)
        ),
    )
    stopped, effects = step(job, look)
    assert Effect(EffectKind.CANCEL) in effects
    assert EffectKind.CANCEL not in obsolete_effects(stopped)
    assert Effect(EffectKind.CANCEL) not in step(stopped, look)[1]  # once
    ended = then(stopped, SlurmCompleted(CANCELLED))
    assert ended.outcome is not None
    assert (ended.outcome.status, ended.outcome.minutes) == (
        ChainStatus.OUT_OF_CREDITS,
        8 if look.run.start_s else 10,
    )
    assert "10 minutes" in ended.status_message
    asked = then(then(stopped, CancelRequested()), SlurmCompleted(CANCELLED))
    assert asked.outcome is not None
    assert asked.outcome.status is ChainStatus.CANCELLED


def test_paid_time_is_used_up__before_the_first_look_at_a_run__is_cancelled() -> None:
    unseen = SlurmJobIdentified(ID, T + 500, requeued(500), T)
    job, effects = step(
        then(lived(*TO_QUEUED)[0], unseen),
        SlurmRunningObserved("RUNNING", requeued(500, 100)),
    )
    assert (job.state, job.stop is not None) == (State.RUNNING, True)
    assert Effect(EffectKind.CANCEL) in effects


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(("slurm_id", "cancelled"), [(ID, True), (SlurmId(8), False)])
def test_runs_after_its_end__own_or_other_id__cancels_only_its_own_and_bill_stays(
    settled: bool, slurm_id: SlurmId, cancelled: bool
) -> None:
    finished = Outcome(status=ChainStatus.FINISHED, elapsed_s=70)
    ended = then(run_once(), SlurmCompleted(finished))
    if settled:
        ended = then(ended, ChainStatusObserved(ChainStatus.FINISHED))
    again, effects = step(ended, RunsAfterItsEnd(slurm_id))
    assert (Effect(EffectKind.CANCEL) in effects) == cancelled
    assert not cancelled or EffectKind.CANCEL not in obsolete_effects(again)
    assert again.outcome == finished


def test_paid_time_is_used_up__in_one_run__is_slurms_to_end() -> None:
    job, effects = step(run_once(), SlurmRunningObserved("RUNNING", first(700)))
    assert job.stop is None
    assert [effect.kind for effect in effects] == [EffectKind.POLL_SLURM]


@pytest.mark.parametrize(
    ("elapsed_s", "at_most_s"), [(1, 599), (500, 100), (590, 30), (700, 30)]
)
def test_next_look__after_many_polls__comes_at_the_end_of_paid_time_or_in_30_s(
    elapsed_s: int, at_most_s: int
) -> None:
    job = replace(run_once(), poll_count=20)
    assert (
        step(job, SlurmRunningObserved("RUNNING", first(elapsed_s)))[1][0].due_in_s
        == at_most_s
    )


# --- more than paid -------------------------------------------------------------------


def test_more_than_paid__time_only__is_put_back_also_while_it_runs() -> None:
    job, effects = step(
        run_once(),
        MoreThanPaid("TimeLimit: 600 instead of 10", limit_only=True, waits=False),
    )
    assert effects == (Effect(EffectKind.TOP_UP),)
    assert job.stop is None


def test_more_than_paid__while_it_waits__is_put_back_a_few_times() -> None:
    event = MoreThanPaid("CPUs: 8 instead of 1", limit_only=False, waits=True)
    job = run_once()
    for times in range(MAX_PUT_BACK_TIMES):
        for _ in range(5):  # looks before the worker has put it back prove nothing
            job, effects = step(job, event)
            assert [effect.kind for effect in effects] == [
                EffectKind.TOP_UP,
                EffectKind.POLL_SLURM,
            ]
            assert job.put_back == times
        job, _ = step(job, LimitApplied(job.run_limit_min, put_back=True))
    assert job.put_back == MAX_PUT_BACK_TIMES
    job, effects = step(job, event)
    assert effects == (Effect(EffectKind.CANCEL),)


def test_more_than_paid__has_ended__keeps_its_end_and_gets_the_reason() -> None:
    event = MoreThanPaid("GPUs: 2 instead of 0", False, waits=False, ended=True)
    job, effects = step(run_once(), event)
    assert effects == ()
    finished = Outcome(status=ChainStatus.FINISHED, elapsed_s=70)
    ended = then(job, SlurmCompleted(finished))
    assert ended.outcome is not None
    assert (ended.outcome.status, ended.outcome.elapsed_s) == (finished.status, 70)
    assert "GPUs: 2 instead of 0" in ended.status_message


def test_more_than_paid__while_it_runs__is_cancelled_with_a_reason() -> None:
    event = MoreThanPaid("GPUs: 2 instead of 0", limit_only=False, waits=False)
    job, effects = step(run_once(), event)
    assert effects == (Effect(EffectKind.CANCEL),)
    assert step(job, event)[1] == ()
    ended, effects = step(job, SlurmCompleted(CANCELLED))
    assert ended.outcome is not None
    assert (ended.outcome.status, ended.outcome.elapsed_s) == (ChainStatus.CANCELLED, 9)
    assert "GPUs: 2 instead of 0" in ended.status_message
    assert Effect(EffectKind.NOTIFY_CUSTOMER) in effects
    given_up = then(job, OperatorAbandonedEffect(EffectKind.CANCEL, "the operator's"))
    assert given_up.stop is None


def test_callback_received__settled_job_runs__is_cancelled() -> None:
    job = then(run_once(), ChainStatusObserved(ChainStatus.FINISHED))
    assert job.state is State.SETTLED
    assert step(job, CallbackReceived(running=True)) == (
        job,
        (Effect(EffectKind.CANCEL, 0.0),),
    )
    assert step(job, CallbackReceived()) == (job, ())
