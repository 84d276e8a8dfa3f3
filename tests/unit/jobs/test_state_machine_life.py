"""The life of a job: single steps, and a state machine that drives `advance` with
events duplicated, lost and reordered.
"""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from supervisor_tasks.jobs.effect_timing import BEFORE_SECOND_SEARCH_S, next_poll
from supervisor_tasks.jobs.events import (
    CallbackReceived,
    CancelRequested,
    ChainStatusObserved,
    EffectMissing,
    Event,
    ExistingSlurmJobAdopted,
    FalseSlurmId,
    LaunchFailed,
    LimitApplied,
    OperatorCancelled,
    ScriptFetched,
    ScriptUnavailable,
    SlurmCompleted,
    SlurmJobIdentified,
    SlurmJobMissing,
    SlurmPendingObserved,
    SlurmRunningObserved,
    SubmissionLostBySlurm,
    SubmissionNotFound,
    SubmissionStillPossible,
    SubmitNotExecuted,
    SubmitOutcomeUnknown,
    SubmitRejected,
    SubmitStarted,
    Submitted,
    ToppedUp,
)
from supervisor_tasks.jobs.model import (
    EFFECTS_BY_STATE,
    RANK,
    ChainStatus,
    Effect,
    EffectKind,
    Outcome,
    SlurmId,
    State,
    StatusUpdate,
    is_final,
    obsolete_effects,
    pending_reports,
)
from supervisor_tasks.jobs.state_machine import LAUNCH_AGAIN_S, UNKNOWN_BLOCK, advance
from tests.support.examples import examples
from tests.support.job_histories import (
    CLAIM,
    DEFINITION,
    TO_QUEUED,
    TO_READY,
    TO_RUNNING,
    TO_SUBMITTING,
    lived,
    step,
    then,
)

FINISHED = Outcome(status=ChainStatus.FINISHED, elapsed_s=125, exit_status=0)


def test_advance__claim__asks_for_the_script() -> None:
    job, effects = lived()
    assert job.state is State.CLAIMED
    assert effects == (Effect(EffectKind.FETCH),)


def test_advance__event_of_an_unknown_job__is_nothing() -> None:
    assert advance(None, SlurmRunningObserved()) == (None, ())


@pytest.mark.parametrize("field", ["ntasks", "cpus_per_task", "mem_per_cpu_mb"])
def test_advance__definition_with_a_zero__fails_with_zero_minutes_and_a_reason(
    field: str,
) -> None:
    job, effects = advance(
        None,
        replace(
            CLAIM,
            definition=replace(DEFINITION, **{field: 0}),  # type: ignore[arg-type]
        ),
    )
    assert job is not None
    assert job.outcome is not None
    assert (job.state, job.outcome.status, job.outcome.minutes) == (
        State.ENDED,
        ChainStatus.FAILED,
        0,
    )
    assert "expected 1 to" in job.outcome.reason
    assert {effect.kind for effect in effects} == {
        EffectKind.REPORT,
        EffectKind.NOTIFY_CUSTOMER,
        EffectKind.CANCEL,
    }


def test_advance__no_time_limit__fails_and_is_never_unlimited() -> None:
    job, _ = advance(None, replace(CLAIM, time_limit_min=0))
    assert job is not None
    assert job.state is State.ENDED


def test_advance__whole_journey__reports_running_then_the_end() -> None:
    job, effects = lived(*TO_RUNNING)
    assert Effect(EffectKind.REPORT) in effects
    assert pending_reports(job) == (StatusUpdate(ChainStatus.RUNNING),)
    job = then(job, ChainStatusObserved(ChainStatus.RUNNING))
    assert pending_reports(job) == ()
    job, effects = step(job, SlurmCompleted(FINISHED))
    assert effects == (Effect(EffectKind.REPORT),)
    assert pending_reports(job) == (StatusUpdate(ChainStatus.FINISHED, 2, "", 0),)
    job = then(job, ChainStatusObserved(ChainStatus.FINISHED))
    assert job.state is State.SETTLED


def test_advance__script_never_to_be_had__fails_with_a_reason() -> None:
    job, _ = lived(ScriptUnavailable("NOT_FOUND"))
    assert job.outcome == Outcome(status=ChainStatus.FAILED, reason="NOT_FOUND")


def test_advance__unclear_submission__looks_twice_before_submitting_again() -> None:
    job, effects = lived(*TO_SUBMITTING, SubmitOutcomeUnknown("cut"))
    assert job.state is State.SUBMITTING
    assert effects[0].kind is EffectKind.SUBMIT
    job, effects = lived(
        *TO_SUBMITTING, SubmitOutcomeUnknown("cut"), SubmissionNotFound()
    )
    assert job.state is State.SUBMITTING
    assert effects[0].due_in_s > 10  # SLURM's MessageTimeout
    job, effects = lived(
        *TO_SUBMITTING,
        SubmitOutcomeUnknown("cut"),
        SubmissionNotFound(),
        SubmissionNotFound(),
    )
    assert job.state is State.READY
    assert effects == (Effect(EffectKind.SUBMIT),)


def test_advance__submission_that_certainly_did_not_happen__is_open_still() -> None:
    job, effects = lived(*TO_SUBMITTING, SubmitNotExecuted("late"))
    # the effect that did not do it is tried again
    assert (job.state, effects) == (State.READY, ())
    job, _ = lived(*TO_SUBMITTING, CancelRequested(), SubmitNotExecuted("late"))
    assert job.outcome == Outcome(status=ChainStatus.CANCELLED)
    job, _ = lived(*TO_SUBMITTING, Submitted(SlurmId(9)), SubmitNotExecuted("late"))
    assert job.state is State.QUEUED


def test_advance__found_after_an_unclear_submission__is_adopted() -> None:
    job, _ = lived(*TO_SUBMITTING, SubmitOutcomeUnknown("cut"), Submitted(SlurmId(9)))
    assert (job.state, job.slurm_id) == (State.QUEUED, 9)


def test_advance__a_second_id_for_the_same_job__does_not_replace_the_first() -> None:
    job, effects = lived(*TO_QUEUED, Submitted(SlurmId(8)))
    assert (job.slurm_id, effects) == (7, ())


def test_advance__slurm_rejects__gives_back_and_tells_the_user() -> None:
    job, effects = lived(*TO_SUBMITTING, SubmitRejected("Invalid partition"))
    assert (job.state, job.status_message) == (State.REFUSED, "Invalid partition")
    assert {effect.kind for effect in effects} == {
        EffectKind.RETURN_JOB,
        EffectKind.NOTIFY_CUSTOMER,
    }
    assert not is_final(job)
    job = then(job, ChainStatusObserved(ChainStatus.PENDING))
    assert is_final(job)


def test_advance__given_back_and_claimed_again__starts_from_the_claim() -> None:
    refused, _ = lived(
        *TO_SUBMITTING, SubmitRejected("full"), ChainStatusObserved(ChainStatus.PENDING)
    )
    same, _ = advance(refused, CLAIM)
    assert same == refused
    again, effects = advance(refused, replace(CLAIM, claim_key="claim:1"))
    assert again is not None
    assert (again.state, again.chain_status) == (State.CLAIMED, ChainStatus.SCHEDULED)
    assert effects == (Effect(EffectKind.FETCH),)


@pytest.mark.parametrize("before", [(), TO_READY])
def test_advance__cancelled_before_submission__never_reaches_slurm(
    before: tuple[Event, ...],
) -> None:
    job, effects = lived(*before, CancelRequested())
    assert job.outcome == Outcome(status=ChainStatus.CANCELLED)
    assert effects == (Effect(EffectKind.REPORT), Effect(EffectKind.CANCEL))
    assert lived(*before, CancelRequested(), SubmitStarted(10))[0].state is State.ENDED


def test_advance__rejected_while_the_session_has_a_token__is_looked_for_after_it() -> (
    None
):
    _, effects = lived(*TO_SUBMITTING, SubmitRejected("full", token_s=202.0))
    assert Effect(EffectKind.CANCEL, BEFORE_SECOND_SEARCH_S) in effects
    _, effects = lived(*TO_SUBMITTING, SubmitRejected("full"))
    assert EffectKind.CANCEL not in {effect.kind for effect in effects}


REJECTED = (*TO_SUBMITTING, SubmitRejected("full", token_s=202.0))


@pytest.mark.parametrize(
    "before",
    [
        REJECTED,
        (*REJECTED, ChainStatusObserved(ChainStatus.PENDING)),
        (*TO_SUBMITTING, SubmitNotExecuted("no"), CancelRequested()),
        (*TO_SUBMITTING, CancelRequested(), SubmitRejected("full", token_s=202.0)),
        (*TO_SUBMITTING, ChainStatusObserved(ChainStatus.CANCELLED)),
        (*TO_READY, ChainStatusObserved(ChainStatus.CANCELLED)),
    ],
    ids=["refused", "given back", "not run", "cancelled", "settled", "settled early"],
)
def test_advance__over_without_an_id__is_looked_for_until_nothing_can_arrive(
    before: tuple[Event, ...],
) -> None:
    job, _ = lived(*before)
    assert EffectKind.CANCEL not in obsolete_effects(job)
    same, effects = step(job, SubmissionStillPossible(90.0))
    assert (same, effects) == (job, (Effect(EffectKind.CANCEL, 90.0),))


def test_advance__claimed_again__its_submission_looks_for_it_and_no_cancel_does() -> (
    None
):
    given_back = (*REJECTED, ChainStatusObserved(ChainStatus.PENDING))
    job, _ = lived(*given_back, replace(CLAIM, claim_key="claim:1"))
    assert EffectKind.CANCEL in obsolete_effects(job)
    assert step(job, SubmissionStillPossible(90.0)) == (job, ())


def test_advance__cancelled_while_submitting__is_cancelled_once_the_id_is_known() -> (
    None
):
    job, effects = lived(*TO_SUBMITTING, CancelRequested())
    assert effects == ()
    job, effects = step(job, Submitted(SlurmId(7)))
    assert EffectKind.CANCEL in {effect.kind for effect in effects}


def test_advance__top_up__twice_is_once_and_the_limit_is_absolute() -> None:
    job, effects = lived(*TO_RUNNING, ToppedUp("tx:1", 5))
    assert (job.limit_min, effects) == (15, (Effect(EffectKind.TOP_UP),))
    job, effects = step(job, ToppedUp("tx:1", 5))
    assert (job.limit_min, effects) == (15, ())
    job, effects = step(job, LimitApplied(15))
    assert (job.applied_limit_min, effects) == (15, ())


def test_advance__limit_set_before_a_top_up_and_recorded_after_it__is_set_again() -> (
    None
):
    job, _ = lived(*TO_RUNNING, ToppedUp("tx:1", 5), LimitApplied(15))
    longer, _ = step(job, ToppedUp("tx:2", 5))
    job, effects = step(longer, LimitApplied(8))
    assert (job.applied_limit_min, effects) == (8, (Effect(EffectKind.TOP_UP),))


def test_advance__top_up_while_submitting__is_applied_once_slurm_has_the_job() -> None:
    _, effects = lived(*TO_SUBMITTING, ToppedUp("tx:1", 5), Submitted(SlurmId(7)))
    assert EffectKind.TOP_UP in {effect.kind for effect in effects}


def test_advance__contract_decided_while_slurm_runs__cancels_in_slurm() -> None:
    job, effects = lived(*TO_RUNNING, ChainStatusObserved(ChainStatus.PANICKED))
    assert job.state is State.SETTLED
    assert effects == (Effect(EffectKind.CANCEL),)


@pytest.mark.parametrize(
    "events",
    [
        [LaunchFailed(SlurmId(7), "node1")],
        [SubmissionLostBySlurm(SlurmId(7))],
        [FalseSlurmId(SlurmId(7), "no"), *[SubmissionNotFound()] * 2],
        [FalseSlurmId(SlurmId(7), "no"), SubmitRejected("full")],
    ],
)
def test_advance__operator_cancelled_and_slurm_has_not_the_job__is_not_submitted(
    events: list[Event],
) -> None:
    cancelled = OperatorCancelled("by the operator")
    job, effects = lived(*TO_QUEUED, cancelled, *events)
    assert job.outcome == Outcome(
        status=ChainStatus.CANCELLED, reason="by the operator"
    )
    assert EffectKind.REPORT in {effect.kind for effect in effects}
    assert EffectKind.SUBMIT not in {effect.kind for effect in effects}


def test_advance__operator_cancelled_and_slurm_has_another_id__cancels_that() -> None:
    _, effects = lived(
        *TO_QUEUED,
        OperatorCancelled("by the operator"),
        FalseSlurmId(SlurmId(7), "no"),
        Submitted(SlurmId(8)),
    )
    assert EffectKind.CANCEL in {effect.kind for effect in effects}


@pytest.mark.parametrize(
    ("events", "block"),
    [
        ([ChainStatusObserved(ChainStatus.FINISHED)], UNKNOWN_BLOCK),
        (
            [
                ChainStatusObserved(ChainStatus.FINISHED),
                ChainStatusObserved(ChainStatus.FINISHED, (110, 3)),
            ],
            110,
        ),
        (
            [
                ChainStatusObserved(ChainStatus.RUNNING),
                ChainStatusObserved(ChainStatus.RUNNING, (110, 3)),
            ],
            UNKNOWN_BLOCK,  # a log of another kind may be in a later block
        ),
        (
            [
                ChainStatusObserved(ChainStatus.RUNNING),
                ChainStatusObserved(ChainStatus.FINISHED, (110, 3)),
            ],
            110,
        ),
    ],
)
def test_advance__status_seen_without_a_place__has_its_logs_block_at_the_end(
    events: list[ChainStatusObserved], block: int
) -> None:
    job, _ = lived(*TO_RUNNING, *events)
    assert job.last_event_block == block


def test_advance__an_earlier_word_of_the_contract_that_comes_later__is_void() -> None:
    job, _ = lived(*TO_RUNNING, ChainStatusObserved(ChainStatus.RUNNING, (12, 3)))
    for status, at in (
        (ChainStatus.META_SCHEDULED, (9, 0)),
        (ChainStatus.PENDING, (12, 2)),
        (ChainStatus.FAILED, (12, 3)),
    ):
        assert advance(job, ChainStatusObserved(status, at)) == (job, ())
    assert (
        then(job, ChainStatusObserved(ChainStatus.PENDING, (13, 0))).state
        is State.REFUSED
    )


def test_advance__callback__only_makes_us_look() -> None:
    job, effects = lived(*TO_QUEUED, CallbackReceived())
    assert job.state is State.QUEUED
    assert effects == (Effect(EffectKind.POLL_SLURM),)


def test_advance__one_callback_too_many__makes_us_look_later_and_changes_nothing() -> (
    None
):
    job, _ = lived(
        *TO_QUEUED, SlurmPendingObserved("PENDING"), SlurmPendingObserved("PENDING")
    )
    assert advance(job, CallbackReceived(poll_delay_s=8.0)) == (
        job,
        (Effect(EffectKind.POLL_SLURM, 8.0),),
    )


def test_advance__no_news__looks_less_and_less_often() -> None:
    job, _ = lived(*TO_QUEUED)
    waits = []
    for _ in range(20):
        job, effects = step(job, SlurmPendingObserved("PENDING"))
        waits.append(effects[0].due_in_s)
    assert waits == sorted(waits)
    # the paid time; of longer jobs, 15 minutes
    assert waits[-1] == job.limit_min * 60 == 600
    assert next_poll(replace(job, time_limit_min=60)).due_in_s == 900


OUTCOMES = st.builds(
    Outcome,
    status=st.sampled_from(
        [s for s in ChainStatus if s.is_final and s is not ChainStatus.PANICKED]
    ),
    elapsed_s=st.integers(0, 10_000),
    exit_status=st.integers(0, 65_535),
    reason=st.sampled_from(["", "NODE_FAIL"]),
)


def test_advance__lost__is_panicked_and_what_slurm_may_run_on_is_cancelled() -> None:
    lost, effects = lived(*TO_RUNNING, SlurmJobMissing(SlurmId(7), "gone"))
    assert lost.outcome is not None
    assert (lost.state, lost.outcome.status) == (State.ENDED, ChainStatus.PANICKED)
    assert Effect(EffectKind.CANCEL) in effects
    assert EffectKind.CANCEL not in obsolete_effects(lost)
    assert EffectKind.CANCEL in obsolete_effects(
        then(lived(*TO_RUNNING)[0], SlurmCompleted(FINISHED))
    )


def test_advance__slurmctld_forgot_what_waited__submitted_again_and_once() -> None:
    again, effects = lived(*TO_QUEUED, SubmissionLostBySlurm(SlurmId(7)))
    assert (again.state, again.slurm_id, effects) == (
        State.READY,
        None,
        (Effect(EffectKind.SUBMIT),),
    )
    assert (
        then(then(again, SubmitStarted(10)), Submitted(SlurmId(7))).state
        is State.QUEUED
    )
    cancelled = lived(*TO_QUEUED, CancelRequested(), SubmissionLostBySlurm(SlurmId(7)))[
        0
    ]
    assert cancelled.outcome == Outcome(status=ChainStatus.CANCELLED)
    for others in (
        (*TO_RUNNING,),
        (*TO_QUEUED, ChainStatusObserved(ChainStatus.RUNNING)),
        (*TO_SUBMITTING,),
    ):
        assert lived(*others, SubmissionLostBySlurm(SlurmId(7))) == (
            lived(*others)[0],
            (),
        )
    assert lived(*TO_QUEUED, SubmissionLostBySlurm(SlurmId(8))) == (
        lived(*TO_QUEUED)[0],
        (),
    )


def test_advance__node_could_not_start_it__submitted_again_a_little_later_and_once() -> (
    None
):
    again, effects = lived(*TO_QUEUED, LaunchFailed(SlurmId(7), "node1"))
    assert (again.state, again.slurm_id, again.runs) == (State.READY, None, ())
    assert effects == (Effect(EffectKind.SUBMIT, LAUNCH_AGAIN_S),)
    assert (
        then(then(again, SubmitStarted(10)), Submitted(SlurmId(9))).state
        is State.QUEUED
    )
    cancelled = lived(*TO_QUEUED, CancelRequested(), LaunchFailed(SlurmId(7), "node1"))[
        0
    ]
    assert cancelled.outcome == Outcome(status=ChainStatus.CANCELLED)
    for others in (
        (*TO_RUNNING,),
        (*TO_QUEUED, ChainStatusObserved(ChainStatus.RUNNING)),
        (*TO_SUBMITTING,),
    ):
        assert lived(*others, LaunchFailed(SlurmId(7), "node1")) == (
            lived(*others)[0],
            (),
        )
    assert lived(*TO_QUEUED, LaunchFailed(SlurmId(8), "node1")) == (
        lived(*TO_QUEUED)[0],
        (),
    )


def test_advance__slurm_denies_the_submitted_id__searches_unless_job_was_identified() -> (
    None
):
    denied = FalseSlurmId(SlurmId(7), "another's")
    sought, effects = lived(*TO_QUEUED, denied)
    assert (sought.state, sought.slurm_id, effects) == (
        State.SUBMITTING,
        None,
        (Effect(EffectKind.SUBMIT),),
    )
    assert then(sought, Submitted(SlurmId(9))).slurm_id == 9
    seen = (*TO_QUEUED, SlurmJobIdentified(SlurmId(7), 1))
    for others in (
        (*TO_RUNNING,),
        seen,
        (*TO_QUEUED, ChainStatusObserved(ChainStatus.RUNNING)),
        (*TO_SUBMITTING,),
    ):
        assert lived(*others, denied) == (lived(*others)[0], ())
    assert lived(*TO_QUEUED, FalseSlurmId(SlurmId(8), "")) == (
        lived(*TO_QUEUED)[0],
        (),
    )


EVENTS = st.one_of(
    st.just(CLAIM),
    st.just(ScriptFetched("echo", "logger:1")),
    st.builds(ScriptUnavailable, st.just("gone")),
    st.just(SubmitStarted(10)),
    st.builds(Submitted, st.sampled_from([SlurmId(7), SlurmId(8)])),
    st.just(SubmitRejected("no")),
    st.just(SubmitOutcomeUnknown("cut")),
    st.just(SubmissionNotFound()),
    st.just(SubmitNotExecuted("late")),
    st.sampled_from([CallbackReceived(), CallbackReceived(poll_delay_s=8.0)]),
    st.just(SlurmPendingObserved("PENDING")),
    st.just(SlurmRunningObserved()),
    st.builds(SlurmCompleted, OUTCOMES),
    st.just(CancelRequested()),
    st.builds(ToppedUp, st.sampled_from(["tx:1", "tx:2"]), st.integers(1, 100)),
    st.builds(LimitApplied, st.integers(1, 500)),
    st.builds(EffectMissing, st.sampled_from(EffectKind)),
    st.builds(ExistingSlurmJobAdopted, st.sampled_from([None, SlurmId(7), SlurmId(9)])),
    st.builds(SubmissionLostBySlurm, st.sampled_from([SlurmId(7), SlurmId(8)])),
    st.builds(
        LaunchFailed, st.sampled_from([SlurmId(7), SlurmId(8)]), st.just("node1")
    ),
    st.builds(
        FalseSlurmId,
        st.sampled_from([SlurmId(7), SlurmId(8)]),
        st.just("another's"),
    ),
    st.builds(
        SlurmJobMissing,
        st.sampled_from([None, SlurmId(7), SlurmId(8)]),
        st.just("gone"),
    ),
    st.builds(
        ChainStatusObserved,
        st.sampled_from(ChainStatus),
        st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
    ),
)


class AnyOrder(RuleBasedStateMachine):
    """Any event at any time, as often as it likes. The outbox is kept as the ledger
    keeps it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.job, effects = advance(None, CLAIM)
        self.open = {effect.kind for effect in effects}
        self.decided: Outcome | None = None
        self.seen: list[Event] = []

    def _happens(self, event: Event, done: EffectKind | None = None) -> None:
        before = self.job
        after, effects = advance(before, event)
        assert before is not None
        assert after is not None
        if (
            isinstance(event, SubmissionLostBySlurm | LaunchFailed | FalseSlurmId)
            and after.state is not before.state
        ):
            assert before.state is State.QUEUED, "only what waits is submitted again"
            assert before.chain_status is ChainStatus.SCHEDULED
            assert after.slurm_id is None
        else:
            assert RANK[after.state] >= RANK[before.state], "no event moves a job back"
        if before.outcome is not None:
            assert after.outcome == before.outcome, "an end is decided once"
        if is_final(before):
            assert after.state is before.state or after.slurm_id != before.slurm_id
            assert after.chain_status is before.chain_status
        if done is not None:
            self.open.discard(done)
        self.open = (
            self.open | {effect.kind for effect in effects}
        ) - obsolete_effects(after)
        self.job = after
        self.seen.append(event)

    @rule(event=EVENTS)
    def something_happens(self, event: Event) -> None:
        # An outcome of a step arrives only while the step is open, and it ends it: the
        # ledger's rule.
        kinds = {
            ScriptFetched: EffectKind.FETCH,
            ScriptUnavailable: EffectKind.FETCH,
            Submitted: EffectKind.SUBMIT,
            SubmitRejected: EffectKind.SUBMIT,
            SubmitOutcomeUnknown: EffectKind.SUBMIT,
            SubmissionNotFound: EffectKind.SUBMIT,
            SlurmPendingObserved: EffectKind.POLL_SLURM,
            SlurmRunningObserved: EffectKind.POLL_SLURM,
            SlurmCompleted: EffectKind.POLL_SLURM,
            LimitApplied: EffectKind.TOP_UP,
        }
        kind = kinds.get(type(event))
        right_time = {
            EffectKind.FETCH: State.CLAIMED,
            EffectKind.SUBMIT: State.SUBMITTING,
        }
        assert self.job is not None
        ends = kind in self.open and (
            kind not in right_time or self.job.state is right_time[kind]
        )
        self._happens(event, kind if ends else None)

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def something_comes_again(self, data: st.DataObject) -> None:
        self._happens(data.draw(st.sampled_from(self.seen)))

    @invariant()
    def never_stuck(self) -> None:
        assert self.job is not None
        if not is_final(self.job):
            assert self.open & EFFECTS_BY_STATE[self.job.state], (
                f"{self.job.state} without anything to do"
            )

    @invariant()
    def billed_once(self) -> None:
        assert self.job is not None
        ends = [step for step in pending_reports(self.job) if step.status.is_final]
        assert len(ends) <= 1
        if self.job.outcome is not None and ends:
            assert ends[0].minutes == self.job.outcome.elapsed_s // 60


AnyOrder.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=40
)
TestAnyOrder = AnyOrder.TestCase


def test_identified__under_another_id_or_after_the_end__changes_nothing() -> None:
    queued, _ = lived(ScriptFetched("s", ""), SubmitStarted(10), Submitted(SlurmId(7)))
    assert then(queued, SlurmJobIdentified(SlurmId(8), 1000)) == queued
    known = then(queued, SlurmJobIdentified(SlurmId(7), 1000))
    assert known.slurm_submit_s == 1000
    ended = then(known, SlurmCompleted(FINISHED))
    assert then(ended, SlurmJobIdentified(SlurmId(7), 2000)) == ended


def test_identified__by_a_later_time_after_a_requeue__is_recorded_again() -> None:
    events = (
        ScriptFetched("s", ""),
        SubmitStarted(10),
        Submitted(SlurmId(7)),
        SlurmJobIdentified(SlurmId(7), 1000),
    )
    assert (
        then(lived(*events)[0], SlurmJobIdentified(SlurmId(7), 1060)).slurm_submit_s
        == 1060
    )
