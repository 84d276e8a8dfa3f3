"""What a reorganisation makes of a job, alone and in any order with everything else;
and what is none.
"""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from supervisor_tasks.jobs.events import (
    CancelRequested,
    ChainStatusObserved,
    Claimed,
    Event,
    LimitApplied,
    OperatorCancelled,
    OperatorSettledJob,
    Reorganised,
    ScriptFetched,
    ScriptUnavailable,
    SlurmCompleted,
    SlurmRunningObserved,
    SubmissionNotFound,
    SubmitRejected,
    SubmitStarted,
    Submitted,
    ToppedUp,
)
from supervisor_tasks.jobs.model import (
    EFFECTS_BY_STATE,
    Address,
    ChainStatus,
    Definition,
    Effect,
    EffectKind,
    Job,
    JobId,
    Outcome,
    SlurmId,
    State,
    StatusUpdate,
    is_final,
    obsolete_effects,
    pending_reports,
)
from supervisor_tasks.jobs.state_machine import advance
from tests.support.examples import examples

CLAIM = Claimed(
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
    time_limit_min=10,
    at=(5, 0),
)
FINISHED = Outcome(status=ChainStatus.FINISHED, elapsed_s=125)
TO_SUBMITTING = (CLAIM, ScriptFetched("echo", ""), SubmitStarted(10))
TO_QUEUED = (*TO_SUBMITTING, Submitted(SlurmId(7)))
TO_RUNNING = (
    *TO_QUEUED,
    SlurmRunningObserved(),
    ChainStatusObserved(ChainStatus.RUNNING, (6, 0)),
)
TO_SETTLED = (
    *TO_RUNNING,
    SlurmCompleted(FINISHED),
    ChainStatusObserved(ChainStatus.FINISHED, (7, 0)),
)


def reorganised(
    status: ChainStatus,
    *,
    ours: bool = True,
    fork: int = 4,
    until: int | None = 20,
    cancel: bool = False,
) -> Reorganised:
    return Reorganised(
        status=status,
        ours=ours,
        cancel_requested=cancel,
        fork=fork,
        seen=10,
        until=until,
    )


def lived(*events: Event) -> tuple[Job, set[EffectKind]]:
    job: Job | None = None
    effects: tuple[Effect, ...] = ()
    for event in events:
        job, effects = advance(job, event)
    assert job is not None
    return job, {effect.kind for effect in effects} - obsolete_effects(job)


LOST = reorganised(ChainStatus.META_SCHEDULED)


def test_claim_lost__running_job__goes_on_and_is_reported_only_when_claimed_again() -> (
    None
):
    job, effects = lived(*TO_RUNNING, LOST)
    assert (job.state, job.claim_reverted_by_reorg, pending_reports(job)) == (
        State.RUNNING,
        True,
        (),
    )
    assert effects == {EffectKind.POLL_SLURM}
    job, effects = lived(*TO_RUNNING, LOST, SlurmCompleted(FINISHED))
    assert (job.state, effects) == (State.ENDED, set())
    again = replace(CLAIM, claim_key="claim:9", at=(12, 1))
    job, effects = lived(*TO_RUNNING, LOST, SlurmCompleted(FINISHED), again)
    assert (job.claim_key, job.claim_reverted_by_reorg, effects) == (
        "claim:9",
        False,
        {EffectKind.REPORT},
    )
    assert pending_reports(job) == (
        StatusUpdate(ChainStatus.RUNNING),
        StatusUpdate(ChainStatus.FINISHED, 2),
    )


def test_claim_lost__job_without_a_script__is_fetched_only_when_claimed_again() -> None:
    job, effects = lived(CLAIM, LOST, ScriptUnavailable("UNAUTHENTICATED"))
    assert (job.state, effects, EffectKind.FETCH in obsolete_effects(job)) == (
        State.CLAIMED,
        set(),
        True,
    )
    assert lived(CLAIM, LOST, replace(CLAIM, at=(12, 0)))[1] == {EffectKind.FETCH}
    # The service may have said so before anybody saw that blocks were lost.
    job, effects = lived(
        CLAIM, ScriptUnavailable("UNAUTHENTICATED"), LOST, replace(CLAIM, at=(12, 0))
    )
    assert (job.state, job.outcome, effects) == (
        State.CLAIMED,
        None,
        {EffectKind.FETCH},
    )


@pytest.mark.parametrize(
    "ended",
    [
        OperatorSettledJob(Outcome(status=ChainStatus.PANICKED, reason="by hand")),
        OperatorSettledJob(Outcome(status=ChainStatus.FAILED, reason="by hand")),
        OperatorCancelled("by hand"),
    ],
)
def test_claim_lost__the_operator_had_ended_the_job__it_is_not_begun_again(
    ended: Event,
) -> None:
    job, effects = lived(CLAIM, ended, LOST, replace(CLAIM, at=(12, 0)))
    assert (job.state, effects) == (State.ENDED, {EffectKind.REPORT})
    assert job.outcome is not None
    assert job.outcome.reason == "by hand"


def test_claim_lost__the_customers_cancellation_too__is_begun_again() -> None:
    job, effects = lived(CLAIM, CancelRequested(), LOST, replace(CLAIM, at=(12, 0)))
    assert (job.state, job.outcome, effects) == (
        State.CLAIMED,
        None,
        {EffectKind.FETCH},
    )


def test_claim_lost__job_that_is_ready__is_not_begun() -> None:
    ready = (CLAIM, ScriptFetched("echo", ""))
    job, _ = lived(*ready, LOST, SubmitStarted(10))
    assert (job.state, EffectKind.SUBMIT in obsolete_effects(job)) == (
        State.READY,
        True,
    )
    assert lived(*ready, LOST, replace(CLAIM, at=(12, 0)))[1] == {EffectKind.SUBMIT}


def test_claim_lost__for_good__is_cancelled_in_slurm_and_not_ours() -> None:
    job, effects = lived(
        *TO_RUNNING, LOST, reorganised(ChainStatus.PENDING, ours=False, until=None)
    )
    assert (job.state, is_final(job), effects) == (
        State.REFUSED,
        True,
        {EffectKind.CANCEL},
    )


def test_claim_lost__for_good_and_claimed_again__is_never_submitted_a_second_time() -> (
    None
):
    gone = (*TO_RUNNING, LOST, reorganised(ChainStatus.PENDING, ours=False, until=None))
    job, effects = lived(*gone, replace(CLAIM, at=(30, 0)))
    assert (job.state, job.slurm_id, effects) == (
        State.QUEUED,
        7,
        {EffectKind.POLL_SLURM},
    )


def test_claim_lost__the_id_is_another_customers_job_now__is_given_back() -> None:
    other = replace(
        CLAIM, customer=Address("0x" + "9" * 40), claim_key="claim:9", at=(12, 0)
    )
    job, effects = lived(*TO_RUNNING, LOST, other)
    assert (job.state, effects) == (
        State.REFUSED,
        {EffectKind.RETURN_JOB, EffectKind.CANCEL},
    )


def test_end_lost__job_was_settled__is_reported_again_with_the_same_minutes() -> None:
    job, effects = lived(*TO_SETTLED, reorganised(ChainStatus.SCHEDULED, fork=5))
    assert (job.state, job.outcome, effects) == (
        State.ENDED,
        FINISHED,
        {EffectKind.REPORT},
    )
    assert pending_reports(job)[-1] == StatusUpdate(ChainStatus.FINISHED, 2)
    job, effects = lived(*TO_SETTLED, reorganised(ChainStatus.FINISHED, fork=5))
    assert (job.state, effects) == (State.SETTLED, set())


@pytest.mark.parametrize(
    ("before", "state", "effect"),
    [
        ((CLAIM,), State.CLAIMED, EffectKind.FETCH),
        (TO_SUBMITTING, State.SUBMITTING, EffectKind.SUBMIT),
        (TO_RUNNING, State.QUEUED, EffectKind.POLL_SLURM),
    ],
)
def test_end_lost__reported_by_others__job_is_where_slurm_has_it(
    before: tuple[Event, ...], state: State, effect: EffectKind
) -> None:
    panicked = ChainStatusObserved(ChainStatus.PANICKED, (8, 0))
    job, effects = lived(*before, panicked, reorganised(ChainStatus.SCHEDULED, fork=7))
    assert (job.state, effect in effects) == (state, True)


def test_refusal_lost__job_was_given_back__is_given_back_again() -> None:
    refused = (
        *TO_SUBMITTING,
        SubmitRejected("full"),
        ChainStatusObserved(ChainStatus.PENDING, (8, 0)),
    )
    job, effects = lived(*refused, reorganised(ChainStatus.SCHEDULED, fork=7))
    assert (job.state, job.chain_status, effects) == (
        State.REFUSED,
        ChainStatus.SCHEDULED,
        {EffectKind.RETURN_JOB},
    )


def test_cancel_lost__running_job__counts_only_while_the_contract_has_it() -> None:
    asked = (*TO_RUNNING, CancelRequested((8, 0)))
    job, _ = lived(*asked, reorganised(ChainStatus.RUNNING, fork=7))
    assert (job.cancel_requested, EffectKind.CANCEL in obsolete_effects(job)) == (
        False,
        True,
    )
    assert lived(*asked, reorganised(ChainStatus.RUNNING, fork=7, cancel=True))[
        0
    ].cancel_requested


def test_top_up_lost__comes_again_or_not__counts_once_or_not_at_all() -> None:
    longer = (*TO_RUNNING, ToppedUp("tx:1", 5, (8, 0)), LimitApplied(15))
    doubted, effects = lived(*longer, reorganised(ChainStatus.RUNNING, fork=7))
    assert (
        doubted.limit_min,
        doubted.reorg_deadline_block,
        EffectKind.TOP_UP in effects,
    ) == (15, 20, False)
    job, _ = lived(
        *longer,
        reorganised(ChainStatus.RUNNING, fork=7),
        *[ToppedUp("tx:1", 5, (12, 3))] * 2,
    )
    assert job.limit_min == 15
    final = reorganised(ChainStatus.RUNNING, until=None)
    assert (
        lived(
            *longer,
            reorganised(ChainStatus.RUNNING, fork=7),
            ToppedUp("tx:1", 5, (12, 3)),
            final,
        )[0].limit_min
        == 15
    )
    job, effects = lived(*longer, reorganised(ChainStatus.RUNNING, fork=7), final)
    assert (job.limit_min, job.reorg_deadline_block, EffectKind.TOP_UP in effects) == (
        10,
        None,
        True,
    )
    assert advance(job, LimitApplied(10))[0] == replace(job, applied_limit_min=10)


def test_given_back__top_up_in_doubt_and_claimed_again__nothing_is_in_doubt() -> None:
    given_back = (
        CLAIM,
        ToppedUp("tx:1", 1, (5, 0)),
        ChainStatusObserved(ChainStatus.PENDING, (5, 1)),
        Submitted(SlurmId(7)),
    )
    lost = reorganised(ChainStatus.PENDING, ours=False, fork=4, until=20)
    job, _ = lived(*given_back, lost, replace(CLAIM, at=(12, 0)))
    assert (job.limit_min, job.reorg_deadline_block) == (10, None)


def test_given_back__after_a_top_up_and_claimed_again__has_the_minutes_of_the_claim() -> (
    None
):
    job, _ = lived(
        CLAIM,
        ToppedUp("tx:1", 5, (5, 0)),
        ChainStatusObserved(ChainStatus.PENDING, (5, 1)),
        Submitted(SlurmId(7)),
        replace(CLAIM, at=(12, 0), time_limit_min=15),
    )
    assert job.limit_min == 15


@pytest.mark.parametrize("in_slurm", [(), (Submitted(SlurmId(7)),)])
@pytest.mark.parametrize("read_before", [(), (ToppedUp("tx:1", 5, (5, 0)),)])
def test_topped_up__before_the_claim_in_force__is_in_its_minutes_already(
    in_slurm: tuple[Event, ...], read_before: tuple[Event, ...]
) -> None:
    """The scan reads the log again, or reads it for the first time."""
    given_back = (
        CLAIM,
        *read_before,
        ChainStatusObserved(ChainStatus.PENDING, (5, 1)),
        *in_slurm,
    )
    claimed_again = replace(CLAIM, at=(12, 0), time_limit_min=15)
    again = ToppedUp("tx:1", 5, (5, 0))
    job, effects = lived(*given_back, claimed_again, again)
    assert (job.limit_min, effects) == (15, set())
    later, _ = advance(job, ToppedUp("tx:2", 3, (12, 1)))
    assert later is not None
    assert later.limit_min == 18


def test_topped_up__after_a_claim_that_came_back_in_an_earlier_block__counts() -> None:
    claim = replace(CLAIM, at=(12, 0))
    back = reorganised(ChainStatus.SCHEDULED, ours=True, fork=9, until=30)
    job, _ = lived(claim, back, ToppedUp("tx:1", 5, (11, 0)))
    assert job.limit_min == 15


LONGER_CLAIM = replace(CLAIM, at=(6, 2), time_limit_min=15)
TOP_UP = ToppedUp("tx:1", 5, (8, 0))


def test_claim_mined_again__behind_a_top_up__its_minutes_contain_the_top_up() -> None:
    """In the other blocks the customer's top-up is before the claim, so that our claim
    of the top-up reverts.
    """
    longer = (*TO_RUNNING, TOP_UP, LimitApplied(15))
    back = reorganised(ChainStatus.SCHEDULED, fork=4, until=20)
    final = reorganised(ChainStatus.SCHEDULED, until=None)
    for later in ((), (final,)):
        job, effects = lived(*longer, back, LONGER_CLAIM, *later)
        assert (job.limit_min, job.applied_limit_min) == (15, 15)
        assert (job.state, job.reorg_deadline_block) == (State.RUNNING, None)
        assert EffectKind.TOP_UP not in effects


def test_claim_mined_again__the_second_one__a_top_up_between_both_counts_once() -> None:
    """The job was given back between its claims; both came back in other blocks, and
    the scan reads all logs once more.
    """
    second = replace(CLAIM, at=(9, 0), time_limit_min=15, claim_key="claim:9")
    given_back = (ChainStatusObserved(ChainStatus.PENDING, (8, 5)), second)
    rejected = (*TO_SUBMITTING, SubmitRejected("no such partition"), *given_back)
    back = reorganised(ChainStatus.SCHEDULED, fork=4, until=20)
    read_again = (
        replace(CLAIM, at=(6, 0)),
        TOP_UP,
        ChainStatusObserved(ChainStatus.PENDING, (8, 5)),
        second,
    )
    job, _ = lived(*rejected, back, *read_again)
    assert (job.limit_min, job.top_ups) == (15, ())
    later, _ = advance(job, ToppedUp("tx:2", 3, (9, 1)))
    assert later is not None
    assert later.limit_min == 18


def test_claim_mined_again__read_once_more__changes_nothing() -> None:
    back = reorganised(ChainStatus.SCHEDULED, fork=4, until=20)
    job, _ = lived(*TO_RUNNING, back, LONGER_CLAIM, ToppedUp("tx:2", 3, (7, 0)))
    assert job.limit_min == 18
    assert advance(job, LONGER_CLAIM) == (job, ())


def test_claim_mined_again__another_customers_job_by_now__is_given_back() -> None:
    back = reorganised(ChainStatus.SCHEDULED, fork=4, until=20)
    other = replace(LONGER_CLAIM, customer=Address("0x" + "9" * 40))
    job, effects = lived(*TO_RUNNING, back, other)
    assert (job.state, effects) == (
        State.REFUSED,
        {EffectKind.RETURN_JOB, EffectKind.CANCEL},
    )


def test_chain_status__below_ours_and_without_a_place__is_left_to_the_scan() -> None:
    job, effects = lived(*TO_RUNNING, ChainStatusObserved(ChainStatus.META_SCHEDULED))
    assert (job.state, effects) == (State.RUNNING, set())


STATUSES = st.sampled_from(ChainStatus)
PLACES = st.tuples(st.integers(5, 30), st.integers(0, 3))
EVENTS = st.one_of(
    st.builds(
        lambda key, at: replace(CLAIM, claim_key=key, at=at),
        st.sampled_from(["claim:0", "claim:1"]),
        PLACES,
    ),
    st.just(ScriptFetched("echo", "")),
    st.just(ScriptUnavailable("gone")),
    st.just(SubmitStarted(10)),
    st.builds(Submitted, st.just(SlurmId(7))),
    st.just(SubmitRejected("no")),
    st.just(SubmissionNotFound()),
    st.just(SlurmRunningObserved()),
    st.builds(
        SlurmCompleted,
        st.builds(
            Outcome, status=st.just(ChainStatus.FINISHED), elapsed_s=st.integers(0, 900)
        ),
    ),
    st.builds(CancelRequested, PLACES),
    st.builds(ToppedUp, st.sampled_from(["tx:1", "tx:2"]), st.integers(1, 9), PLACES),
    st.builds(ChainStatusObserved, STATUSES, st.none() | PLACES),
    st.builds(
        Reorganised,
        status=STATUSES,
        ours=st.booleans(),
        cancel_requested=st.booleans(),
        fork=st.integers(4, 30),
        seen=st.integers(5, 40),
        until=st.none() | st.integers(5, 50),
    ),
)


class AnyFork(RuleBasedStateMachine):
    """Reorganisations at any time, among all other events, that may be true or not. The
    outbox is kept as the ledger does.
    """

    def __init__(self) -> None:
        super().__init__()
        job, effects = advance(None, CLAIM)
        assert job is not None
        self.job = job
        self.open = {effect.kind for effect in effects}
        self.handed_over = False

    @rule(event=EVENTS)
    def happens(self, event: Event) -> None:
        before = self.job
        if isinstance(event, SubmissionNotFound | SubmitRejected) and self.handed_over:
            return  # SLURM, which has the job, does not say this
        after, effects = advance(before, event)
        assert after is not None
        if isinstance(event, SubmitStarted) and after.state is not before.state:
            assert not self.handed_over, "SLURM has it, and gets it a second time"
        self.handed_over |= after.slurm_id is not None
        if before.slurm_id is not None:
            assert after.slurm_id == before.slurm_id, "SLURM's id is not lost"
            if before.outcome is not None:
                assert after.outcome == before.outcome, (
                    "what SLURM said last is not lost"
                )
        ended = {
            ScriptFetched: EffectKind.FETCH,
            ScriptUnavailable: EffectKind.FETCH,
            SlurmRunningObserved: EffectKind.POLL_SLURM,
        }
        if after != before:
            self.open.discard(ended.get(type(event), EffectKind.NOTIFY_CUSTOMER))
        self.open = (
            self.open | {effect.kind for effect in effects}
        ) - obsolete_effects(after)
        self.job = after

    @invariant()
    def never_stuck(self) -> None:
        if not is_final(self.job) and not self.job.claim_reverted_by_reorg:
            assert self.open & EFFECTS_BY_STATE[self.job.state], (
                f"{self.job.state} without anything to do"
            )

    @invariant()
    def reports_only_what_is_ours(self) -> None:
        if self.job.claim_reverted_by_reorg:
            assert pending_reports(self.job) == ()
            assert not self.open & {
                EffectKind.REPORT,
                EffectKind.RETURN_JOB,
                EffectKind.FETCH,
            }

    @invariant()
    def doubt_is_about_something(self) -> None:
        if any(top_up.block is None for top_up in self.job.top_ups) and not is_final(
            self.job
        ):
            assert self.job.reorg_deadline_block is not None


AnyFork.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=40)
TestAnyFork = AnyFork.TestCase
