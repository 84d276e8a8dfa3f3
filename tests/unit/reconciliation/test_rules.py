"""Ledger, contract and SLURM compared: what is found, and what is done about it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor_tasks.jobs.events import (
    ChainStatusObserved,
    EffectMissing,
    Event,
    ExistingSlurmJobAdopted,
    RequeueNotForbidden,
    ScriptFetched,
    SlurmJobMissing,
    SlurmRunningObserved,
    SubmissionLostBySlurm,
    SubmitStarted,
    Submitted,
)
from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    Definition,
    EffectKind,
    JobId,
    SlurmId,
    State,
)
from supervisor_tasks.jobs.paid_size import Paid
from supervisor_tasks.jobs.reorg_rules import LAST_LOG
from supervisor_tasks.jobs.state_machine import advance
from supervisor_tasks.reconciliation.doubts import doubts, needs_operator
from supervisor_tasks.reconciliation.models import (
    JobSummary,
    OnChainJob,
)
from supervisor_tasks.reconciliation.rules import (
    Discrepancy,
    ends_on_chain,
    find_discrepancies,
    of_kind,
    unpaid,
)
from supervisor_tasks.reconciliation.snapshot import (
    MIN_LOST_JOBS,
    DiscrepancyKind,
    Snapshot,
    Trace,
    never_seen,
    pending_and_missing,
    unlisted,
)
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.size import Size
from supervisor_tasks.slurm.squeue import SqueueRow
from tests.support.snapshots import (
    CLAIM,
    CUSTOMER,
    GRACE_S,
    OTHERS,
    OUR_COMMENT,
    POLLED,
    STRANGER,
    US,
    WAITS,
    forgetful,
    gone,
    known,
    name,
    on_chain_job,
    row,
    seeing,
)


def found(view: Snapshot) -> list[tuple[DiscrepancyKind, JobId]]:
    return [
        (discrepancy.kind, discrepancy.job_id)
        for discrepancy in find_discrepancies(view)
    ]


def only(view: Snapshot) -> Discrepancy:
    (discrepancy,) = find_discrepancies(view)
    return discrepancy


RAISED_TWICE = known(earlier_limits_min=frozenset({60, 90}))
RAISED_ONCE = known(earlier_limits_min=frozenset({60}))
BEING_RAISED = replace(RAISED_ONCE, open=RAISED_ONCE.open | {EffectKind.TOP_UP})
BEING_SUBMITTED = known(
    1,
    State.READY,
    slurm_id=None,
    open=frozenset({EffectKind.SUBMIT}),
    chain_status=ChainStatus.SCHEDULED,
)
GIVEN_AWAY = {name(1): on_chain_job(ChainStatus.PENDING)}
# the snapshots in which nothing is wrong, by what they show
NOTHING_FOUND = {
    "all is as it should be": seeing(
        known(1), known(2, State.QUEUED), rows=[row(1), row(2, "PENDING")]
    ),
    "the owner has lowered the limit below the first": seeing(
        RAISED_TWICE, rows=[row(limit_min=59)]
    ),
    "the owner has lowered the limit": seeing(RAISED_TWICE, rows=[row(limit_min=75)]),
    "the last limit": seeing(RAISED_TWICE, rows=[row(limit_min=120)]),
    "a higher limit": seeing(RAISED_TWICE, rows=[row(limit_min=121)]),
    "no limit": seeing(RAISED_TWICE, rows=[row(limit_min=None)]),
    "an earlier limit while a top-up is under way": seeing(
        BEING_RAISED, rows=[row(limit_min=60)]
    ),
    "the node is behind the job's claim": seeing(
        known(chain_block=101), rows=[row()], chain=GIVEN_AWAY
    ),
    "it completes, and the operator waits for its end": seeing(
        known(parked=frozenset({EffectKind.POLL_SLURM})), rows=[row(1, "COMPLETING")]
    ),
    "another job has the name of one that is submitted": seeing(
        BEING_SUBMITTED,
        known(2, slurm_submit_s=1000),
        rows=[row(2, name=name(1))],
    ),
    "the owner named his job after another": seeing(
        known(1), known(2), rows=[row(1), row(2, number=1)]
    ),
}


@pytest.mark.parametrize("snapshot", NOTHING_FOUND.values(), ids=NOTHING_FOUND)
def test_find_discrepancies__nothing_is_wrong__finds_none(snapshot: Snapshot) -> None:
    assert find_discrepancies(snapshot) == []


# what each snapshot shows, its only discrepancy and the events that end it
ONE_FOUND: dict[str, tuple[Snapshot, DiscrepancyKind, tuple[Event, ...]]] = {
    "the contract has ended it": (
        seeing(
            known(), rows=[row()], chain={name(1): on_chain_job(ChainStatus.PANICKED)}
        ),
        DiscrepancyKind.FINAL_ON_CHAIN,
        (ChainStatusObserved(ChainStatus.PANICKED),),
    ),
    "SLURM completes it": (
        seeing(known(), rows=[row(1, "COMPLETING")]),
        DiscrepancyKind.END_NOT_RECORDED,
        (EffectMissing(EffectKind.POLL_SLURM),),
    ),
    "the contract knows that it runs": (
        seeing(
            known(chain_status=ChainStatus.SCHEDULED),
            rows=[row()],
            chain={name(1): on_chain_job(ChainStatus.RUNNING)},
        ),
        DiscrepancyKind.AHEAD_ON_CHAIN,
        (ChainStatusObserved(ChainStatus.RUNNING),),
    ),
    # accounting may never get the record of a job that ended while it was away
    "unknown to SLURM, and a hook told its end": (
        gone(known(), age_s=GRACE_S, proven_ends=frozenset({name(1)})),
        DiscrepancyKind.NEEDS_OPERATOR,
        (),
    ),
    "unknown to SLURM, and its end came in during the sweep": (
        gone(known(), age_s=GRACE_S, recently_reported={name(1)}),
        DiscrepancyKind.MISSING,
        (EffectMissing(EffectKind.POLL_SLURM),),
    ),
}


@pytest.mark.parametrize(
    ("snapshot", "kind", "events"), ONE_FOUND.values(), ids=ONE_FOUND
)
def test_find_discrepancies__one_thing_is_wrong__finds_its_kind_with_the_events(
    snapshot: Snapshot, kind: DiscrepancyKind, events: tuple[Event, ...]
) -> None:
    found = only(snapshot)
    assert (found.kind, found.events) == (kind, events)


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING])
def test_find_discrepancies__limit_from_before_a_top_up__restores_the_last_limit(
    state: State,
) -> None:
    job, seen = (
        known(state=state, earlier_limits_min=frozenset({60, 90})),
        "PENDING" if state is State.QUEUED else state,
    )
    for limit_min in (60, 90):
        discrepancy = only(seeing(job, rows=[row(state=seen, limit_min=limit_min)]))
        assert (discrepancy.kind, discrepancy.events) == (
            DiscrepancyKind.LIMIT_LOST,
            (EffectMissing(EffectKind.TOP_UP),),
        )


def test_find_discrepancies__ended_in_a_block_not_read_yet__waits_for_the_scan() -> (
    None
):
    ended = replace(on_chain_job(ChainStatus.CANCELLED), changed_block=100)
    view = seeing(known(), rows=[row()], chain={name(1): ended}, scanned_block=99)
    assert find_discrepancies(view) == []
    assert find_discrepancies(replace(view, scanned_block=100)) != []
    # without a scan nothing else would notice the end
    assert find_discrepancies(replace(view, scan_is_current=False)) != []


def test_find_discrepancies__contract_gave_the_job_away__believed_the_second_time() -> (
    None
):
    for elsewhere in (on_chain_job(ChainStatus.PENDING), on_chain_job(provider=OTHERS)):
        view = seeing(known(), rows=[row()], chain={name(1): elsewhere})
        first = only(view)
        assert (first.kind, first.events) == (DiscrepancyKind.REASSIGNED_ON_CHAIN, ())
        again = replace(
            view, previous_doubts=dict.fromkeys(doubts(view, [first]), GRACE_S)
        )
        # its claim may be in a lost block
        assert only(replace(again, scan_is_current=False)).events == ()
        assert only(again).events == (
            ChainStatusObserved(ChainStatus.PENDING, at=(100, LAST_LOG)),
        )


ELSEWHERE = {
    "over": on_chain_job(ChainStatus.CANCELLED),
    "pending": on_chain_job(ChainStatus.PENDING),
    "another provider's": on_chain_job(provider=OTHERS),
}


@pytest.mark.parametrize("on_chain", ELSEWHERE.values(), ids=ELSEWHERE)
def test_ends_on_chain__job_is_over_or_elsewhere__is_nothing_until_it_is_confirmed(
    on_chain: OnChainJob,
) -> None:
    view = seeing(known(), rows=[row()], chain={name(1): on_chain})
    assert ends_on_chain(view) == {name(1): (on_chain.status, on_chain.provider)}
    assert find_discrepancies(view) != []
    assert find_discrepancies(replace(view, unconfirmed_on_chain={name(1)})) == []


def test_ends_on_chain__an_unsubmitted_job_runs__is_submitted_until_confirmed() -> None:
    """A restored ledger has not submitted it; by a false status it never would."""
    running = on_chain_job(ChainStatus.RUNNING)
    view = seeing(known(state=State.READY, slurm_id=None), chain={name(1): running})
    assert ends_on_chain(view) == {name(1): (ChainStatus.RUNNING, US)}
    assert only(view).kind is DiscrepancyKind.AHEAD_ON_CHAIN
    unconfirmed = found(replace(view, unconfirmed_on_chain={name(1)}))
    assert DiscrepancyKind.AHEAD_ON_CHAIN not in [kind for kind, _ in unconfirmed]


def test_ends_on_chain__jobs_that_no_status_ends__are_not_among_them() -> None:
    final = on_chain_job(ChainStatus.CANCELLED)
    assert ends_on_chain(seeing(known(), rows=[row()])) == {}
    assert ends_on_chain(seeing(known(), rows=[row()], chain=None)) == {}
    # the scan reads the end, and another ledger's job is in no list of SLURM
    later = replace(final, changed_block=100)
    view = seeing(known(), rows=[row()], chain={name(1): later, name(2): final})
    assert ends_on_chain(replace(view, scanned_block=99)) == {}


def test_ends_on_chain__of_a_job_in_slurm__nothing_is_cancelled_until_confirmed() -> (
    None
):
    final = on_chain_job(ChainStatus.CANCELLED)
    unknown = seeing(rows=[row(5)], chain={name(5): final})
    settled = seeing(
        known(state=State.SETTLED, **SETTLED), rows=[row()], chain={name(1): final}
    )
    for view, job_id in ((unknown, name(5)), (settled, name(1))):
        assert ends_on_chain(view) == {job_id: (final.status, US)}
        assert only(view).kind is DiscrepancyKind.ORPHAN_RUNNING
        unconfirmed = replace(view, unconfirmed_on_chain={job_id})
        kinds = [kind for kind, _ in found(unconfirmed)]
        assert DiscrepancyKind.ORPHAN_RUNNING not in kinds


def test_given_back__any_state_in_slurm__is_not_ours_and_is_cancelled() -> None:
    view = seeing(
        known(), rows=[row()], chain={name(1): on_chain_job(ChainStatus.PENDING)}
    )
    (event,) = only(
        replace(
            view,
            previous_doubts=dict.fromkeys(
                doubts(view, find_discrepancies(view)), GRACE_S
            ),
        )
    ).events
    job, _ = advance(None, CLAIM)
    for before in (
        ScriptFetched("true", ""),
        SubmitStarted(10),
        Submitted(SlurmId(1)),
        SlurmRunningObserved(),
    ):
        job, _ = advance(job, before)
        after, effects = advance(job, event)
        assert job is not None
        assert after is not None
        assert (after.state, after.chain_status) == (State.REFUSED, ChainStatus.PENDING)
        assert {effect.kind for effect in effects} == {EffectKind.CANCEL}
    assert job is not None
    after, effects = advance(
        replace(job, chain_status=ChainStatus.PENDING, reorg_deadline_block=120), event
    )
    assert after is not None
    assert (after.state, after.reorg_deadline_block, effects) == (
        State.RUNNING,
        120,
        (),
    )  # its claim may come back until then


def test_find_discrepancies__ledger_of_a_backup__adopts_what_ran_submits_nothing() -> (
    None
):
    job = known(state=State.READY, slurm_id=None)
    view = seeing(job, chain={name(1): on_chain_job(ChainStatus.RUNNING)})
    assert unlisted(view) == {name(1): CUSTOMER}
    for rows, remembered, slurm_id in (
        ([row(7, number=1)], {}, 7),
        ([row(7, "COMPLETED", number=1)], {}, 7),
        ([], {name(1): SlurmId(8)}, 8),
        ([], {}, None),
    ):
        slurm = {listed.slurm_id: listed for listed in rows}
        discrepancies = find_discrepancies(
            replace(view, slurm=slurm, historical_matches=remembered)
        )
        adopted = ExistingSlurmJobAdopted(slurm_id)  # type: ignore[arg-type]
        assert (ChainStatusObserved(ChainStatus.RUNNING), adopted) in [
            discrepancy.events for discrepancy in discrepancies
        ]
    # by the scan
    read_again = replace(
        view, jobs={name(1): replace(job, chain_status=ChainStatus.RUNNING)}, slurm={}
    )
    both = ChainStatusObserved(ChainStatus.RUNNING), ExistingSlurmJobAdopted(SlurmId(8))
    assert (
        only(replace(read_again, historical_matches={name(1): SlurmId(8)})).events
        == both
    )
    assert only(replace(read_again, historical_matches=None)).events == ()
    # accounting is away, or does not know the customer: nothing is decided
    assert only(replace(view, historical_matches=None)).events == ()
    unknown_customer = replace(view, undecided_histories={name(1)})
    assert only(unknown_customer).events == ()
    assert only(replace(view, slurm=None)).events == ()


@pytest.mark.parametrize("seen", ["RUNNING", "COMPLETED"])
@pytest.mark.parametrize("is_parked", [True, False])
def test_find_discrepancies__submitting_and_slurm_has_it__is_adopted_if_parked(
    is_parked: bool, seen: str
) -> None:
    """Its customer can submit a job whose submissions were cut off too often."""
    parked = frozenset({EffectKind.SUBMIT}) if is_parked else frozenset()
    job = known(state=State.SUBMITTING, slurm_id=None, parked=parked)
    found = find_discrepancies(seeing(job, rows=[row(7, seen, number=1)]))
    adopted = [(ExistingSlurmJobAdopted(SlurmId(7)),)] * is_parked
    assert [discrepancy.events for discrepancy in found] == adopted


def test_find_discrepancies__ready_while_slurm_runs_it__is_adopted() -> None:
    job = known(state=State.READY, slurm_id=None)
    assert only(seeing(job, rows=[row(7, number=1)])).events == (
        ExistingSlurmJobAdopted(SlurmId(7)),
    )
    # of an earlier claim
    assert find_discrepancies(seeing(job, rows=[row(7, "CANCELLED", number=1)])) == []
    assert (
        find_discrepancies(
            seeing(
                known(state=State.SUBMITTING, slurm_id=None), rows=[row(7, number=1)]
            )
        )
        == []
    )


def test_find_discrepancies__slurm_has_ended_it__the_monitor_looks_also_if_parked() -> (
    None
):
    for job in (known(), known(parked=POLLED)):
        assert only(seeing(job, rows=[row(1, "COMPLETED")])).events == (
            EffectMissing(EffectKind.POLL_SLURM),
        )
    assert find_discrepancies(seeing(known(parked=POLLED), rows=[row(1)])) == []


def test_find_discrepancies__its_owner_released_it__the_monitor_looks_if_parked() -> (
    None
):
    """Held for an hour, it is parked. Nothing looked any more when it ran then."""
    held = known(state=State.QUEUED, parked=POLLED)
    runs = only(seeing(held, rows=[row(1)]))
    assert (runs.kind, runs.events) == (
        DiscrepancyKind.RUN_NOT_RECORDED,
        (EffectMissing(EffectKind.POLL_SLURM),),
    )
    assert find_discrepancies(seeing(held, rows=[row(1, "PENDING")])) == []


def test_find_discrepancies__ended_and_may_run_again__needs_its_cancel_alone() -> None:
    ended = known(state=State.ENDED, may_run_again=True, open=frozenset())
    assert only(seeing(ended)).events == (EffectMissing(EffectKind.CANCEL),)
    reported = replace(ended, may_run_again=False)
    assert only(seeing(reported)).events == (EffectMissing(EffectKind.REPORT),)
    cancels = frozenset({EffectKind.CANCEL})
    assert find_discrepancies(seeing(replace(ended, open=cancels))) == []
    # the report must not wait for the operator
    parked = replace(ended, open=cancels, parked=cancels)
    assert only(seeing(parked)).events == (RequeueNotForbidden(),)


@pytest.mark.parametrize("comment", [OUR_COMMENT, ""])
def test_unpaid__job_that_this_sweep_takes_into_the_ledger__is_none(
    comment: str,
) -> None:
    """A ledger that was restored from a backup has no id of the job yet."""
    ready = known(state=State.READY, slurm_id=None)
    view = seeing(ready, rows=[row(7, number=1, user=CUSTOMER, comment=comment)])
    found = find_discrepancies(view)
    assert [discrepancy.kind for discrepancy in found] == [DiscrepancyKind.ADOPTED]
    assert unpaid(view, found) == []
    assert [seen.slurm_id for seen in unpaid(view, [])] == [7]


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING])
def test_find_discrepancies__parked_and_not_listed__only_an_end_in_accounting_counts(
    state: State,
) -> None:
    parked, sure = known(state=state, parked=POLLED), GRACE_S * 2
    assert find_discrepancies(gone(parked, age_s=sure)) == []
    snapshot = gone(parked)
    for slurm_state, kinds in (
        ("COMPLETED", [DiscrepancyKind.END_NOT_RECORDED]),
        ("RUNNING", []),
    ):
        record = JobRecord(SlurmId(1), slurm_state, 60, 0)
        accounted = replace(snapshot, confirmed_lookups={name(1): record})
        assert [one.kind for one in find_discrepancies(accounted)] == kinds


def test_find_discrepancies__unknown_to_slurm__is_missing_and_then_lost() -> None:
    first = gone(known())
    assert (only(first).kind, only(first).events) == (
        DiscrepancyKind.MISSING,
        (EffectMissing(EffectKind.POLL_SLURM),),
    )
    assert doubts(first, find_discrepancies(first)) == {f"missing {name(1)}": 0.0}
    assert only(gone(known(), age_s=GRACE_S - 1)).kind is DiscrepancyKind.MISSING
    lost = only(gone(known(), age_s=GRACE_S))
    assert isinstance(lost.events[0], SlurmJobMissing)
    assert (lost.kind, lost.events[0].slurm_id) == (DiscrepancyKind.LOST, SlurmId(1))


def test_find_discrepancies__slurm_does_not_know_it__what_speaks_against_a_panic() -> (
    None
):
    job, sure = known(), GRACE_S * 2
    assert found(gone(job, age_s=sure, slurmctld_uptime_s=GRACE_S - 1)) == [
        (DiscrepancyKind.MISSING, name(1))
    ]  # slurmctld has just started
    # a callback is not read yet
    assert find_discrepancies(gone(known(has_unread_callback=True), age_s=sure)) == []
    # it is the operator's
    assert find_discrepancies(gone(known(parked=POLLED), age_s=sure)) == []
    # accounting does not answer
    assert (
        find_discrepancies(replace(gone(job, age_s=sure), confirmed_lookups={})) == []
    )
    # nor does SLURM
    assert find_discrepancies(replace(gone(job, age_s=sure), slurm=None)) == []
    ended = replace(
        gone(job, age_s=sure),
        confirmed_lookups={name(1): JobRecord(SlurmId(1), "FAILED", 61, 256)},
    )
    assert only(ended).events == (EffectMissing(EffectKind.POLL_SLURM),)
    runs = replace(
        gone(job, age_s=sure),
        confirmed_lookups={name(1): JobRecord(SlurmId(1), "RUNNING", 61, 0)},
    )
    assert (only(runs).kind, only(runs).events) == (DiscrepancyKind.CONTRADICTED, ())


def test_find_discrepancies__reporter_is_away__lost_after_it_had_time_to_deliver() -> (
    None
):
    ran, waits = known(), known(**WAITS)
    for job, trace in ((ran, Trace.SOME), (waits, Trace.SOME), (waits, Trace.NONE)):
        away = gone(
            job, age_s=GRACE_S, traces={name(1): trace}, continuous_uptime_s=None
        )
        assert (only(away).kind, only(away).events) == (
            DiscrepancyKind.NEEDS_OPERATOR,
            (),
        )
        assert needs_operator(away, find_discrepancies(away), {}) == {
            name(1): SlurmId(1)
        }
        # the spool is being delivered
        back = replace(away, continuous_uptime_s=GRACE_S - 1)
        assert only(back).kind is DiscrepancyKind.MISSING
        assert needs_operator(
            back, find_discrepancies(back), {name(1): SlurmId(1)}
        ) == {name(1): SlurmId(1)}
        assert only(replace(away, continuous_uptime_s=GRACE_S)).kind in (
            DiscrepancyKind.LOST,
            DiscrepancyKind.FORGOTTEN,
        )


def test_find_discrepancies__last_seen_completing__operator_decides_and_not_lost() -> (
    None
):
    """SLURM forgets a job with its nodes' last epilog, if that takes MinJobAge."""
    for job in (known(), known(**WAITS)):
        lost = gone(job, age_s=GRACE_S, traces={name(1): Trace.NONE})
        assert only(lost).events != ()
        ended = replace(lost, last_seen_completing=frozenset({name(1)}))
        assert (only(ended).kind, only(ended).events) == (
            DiscrepancyKind.NEEDS_OPERATOR,
            (),
        )
        assert needs_operator(ended, find_discrepancies(ended), {}) == {
            name(1): SlurmId(1)
        }


def test_find_discrepancies__renamed_and_identified_in_the_list__nothing_is_wrong() -> (
    None
):
    """By its script, or by its time where the login node cannot name its user."""
    unnamed = row(user="nobody", comment="none")
    for job, listed in (
        (known(), row(name="mine")),
        (known(slurm_submit_s=1000), unnamed),
    ):
        view = seeing(
            job, rows=[listed], previous_doubts={f"missing {name(1)}": GRACE_S}
        )
        assert (
            find_discrepancies(
                replace(view, confirmed_lookups={name(1): listed.record})
            )
            == []
        )
        other = replace(listed.record, elapsed_s=99)
        assert [
            found.kind
            for found in find_discrepancies(
                replace(view, confirmed_lookups={name(1): other})
            )
        ] == [DiscrepancyKind.CONTRADICTED]
    ended = row(name="mine", state="COMPLETED")
    view = replace(
        seeing(known(), rows=[ended]), confirmed_lookups={name(1): ended.record}
    )
    assert [found.kind for found in find_discrepancies(view)] == [
        DiscrepancyKind.END_NOT_RECORDED
    ]


def test_find_discrepancies__many_renamed_and_identified__the_lost_one_is_not_held() -> (
    None
):
    jobs, rows = (
        [known(number) for number in range(1, 9)],
        [row(number, name="mine") for number in range(1, 8)],
    )
    asked = {name(number): listed.record for number, listed in enumerate(rows, start=1)}
    view = replace(
        gone(*jobs, age_s=GRACE_S, rows=rows),
        confirmed_lookups={**asked, name(8): None},
    )
    assert found(view) == [(DiscrepancyKind.LOST, name(8))]


def test_find_discrepancies__many_lost_or_an_empty_list__need_the_operator() -> None:
    many = [known(number) for number in range(1, MIN_LOST_JOBS + 2)]
    assert {
        discrepancy.kind
        for discrepancy in find_discrepancies(gone(*many, age_s=GRACE_S))
    } == {DiscrepancyKind.NEEDS_OPERATOR}
    few = many[:MIN_LOST_JOBS]
    assert {
        discrepancy.kind
        for discrepancy in find_discrepancies(gone(*few, age_s=GRACE_S))
    } == {DiscrepancyKind.LOST}
    empty = gone(known(), age_s=GRACE_S, slurm={})
    assert (only(empty).kind, only(empty).events) == (
        DiscrepancyKind.NEEDS_OPERATOR,
        (),
    )
    assert f"missing {name(1)}" in doubts(empty, find_discrepancies(empty))


def test_find_discrepancies__slurm_forgot_a_new_job__submits_again_if_no_traces() -> (
    None
):
    waits, sure = known(**WAITS), GRACE_S * 2
    view = gone(waits, age_s=sure, slurm={})  # also when it has lost all
    assert [job.job_id for job in pending_and_missing(view)] == [name(1)]
    forgotten = only(replace(view, traces={name(1): Trace.NONE}))
    assert (forgotten.kind, forgotten.events) == (
        DiscrepancyKind.FORGOTTEN,
        (SubmissionLostBySlurm(SlurmId(1)),),
    )
    assert (
        only(replace(view, traces={name(1): Trace.UNSURE})).kind
        is DiscrepancyKind.NEEDS_OPERATOR
    )
    assert (
        only(gone(waits, age_s=sure, traces={name(1): Trace.SOME})).kind
        is DiscrepancyKind.LOST
    )
    # not looked for yet
    assert (only(view).kind, only(view).events) == (DiscrepancyKind.MISSING, ())
    ran = gone(known(), age_s=sure, traces={name(1): Trace.NONE})
    assert (pending_and_missing(ran), only(ran).kind) == ([], DiscrepancyKind.LOST)
    for too_early in (
        gone(waits, age_s=GRACE_S - 1),
        gone(waits, age_s=sure, slurmctld_uptime_s=GRACE_S - 1),
    ):
        assert pending_and_missing(too_early) == []
        assert (
            only(replace(too_early, traces={name(1): Trace.NONE})).kind
            is DiscrepancyKind.MISSING
        )
    assert (
        pending_and_missing(gone(known(has_unread_callback=True, **WAITS), age_s=sure))
        == []
    )
    assert pending_and_missing(replace(view, confirmed_lookups={})) == []


def test_find_discrepancies__slurm_forgot_many_saved_ones__submits_nothing_again() -> (
    None
):
    lost = forgetful(8, saved=MIN_LOST_JOBS + 1)
    assert lost.slurm_lost_state
    assert {kind for kind, _ in found(lost)} == {DiscrepancyKind.NEEDS_OPERATOR}
    assert not any(discrepancy.events for discrepancy in find_discrepancies(lost))
    assert replace(lost, previous_doubts={}).slurm_lost_state  # at the first sight
    # they were all submitted in the last seconds of a slurmctld that was killed
    killed = forgetful(8, saved=0)
    assert not killed.slurm_lost_state
    assert {kind for kind, _ in found(killed)} == {DiscrepancyKind.FORGOTTEN}


def test_slurm_lost_state__few_that_it_had_saved__these_are_held_and_no_more_follows() -> (
    None
):
    few = forgetful(8, saved=MIN_LOST_JOBS)
    assert not few.slurm_lost_state
    kinds = [kind for kind, _ in found(few)]
    assert (
        kinds.count(DiscrepancyKind.NEEDS_OPERATOR),
        kinds.count(DiscrepancyKind.FORGOTTEN),
    ) == (MIN_LOST_JOBS, 5)


def test_find_discrepancies__none_listed_but_ids_go_on__is_left_to_the_operator() -> (
    None
):
    gone_on = forgetful(2, saved=2, slurm={}, first_job_id=3)
    assert {kind for kind, _ in found(gone_on)} == {DiscrepancyKind.NEEDS_OPERATOR}


SETTLED: dict[str, Any] = {
    "chain_status": ChainStatus.FINISHED,
    "open": frozenset[EffectKind](),
}


def test_find_discrepancies__final_on_chain_and_running__cancelled_by_the_ledgers_id() -> (
    None
):
    view = seeing(known(state=State.SETTLED, **SETTLED), rows=[row()])
    assert (only(view).events, only(view).cancel) == (
        (EffectMissing(EffectKind.CANCEL),),
        None,
    )
    already = known(
        state=State.SETTLED,
        chain_status=ChainStatus.FINISHED,
        open=frozenset({EffectKind.CANCEL}),
    )
    assert find_discrepancies(seeing(already, rows=[row()])) == []
    assert find_discrepancies(replace(view, chain=None)) == []
    # the contract says that it is active
    assert find_discrepancies(replace(view, chain={name(1): on_chain_job()})) == []
    another = row(name="other", comment="")
    assert (
        find_discrepancies(
            seeing(known(state=State.SETTLED, **SETTLED), rows=[another])
        )
        == []
    )
    renamed = known(state=State.SETTLED, slurm_submit_s=1000, **SETTLED)
    assert only(seeing(renamed, rows=[another])).kind is DiscrepancyKind.ORPHAN_RUNNING


def test_find_discrepancies__unknown_to_the_ledger__cancelled_if_ours_and_final() -> (
    None
):
    orphan, final = row(5), on_chain_job(ChainStatus.CANCELLED)
    view = seeing(rows=[orphan], chain={name(5): final})
    assert (only(view).kind, only(view).cancel) == (
        DiscrepancyKind.ORPHAN_RUNNING,
        SlurmId(5),
    )
    for chain in (
        {name(5): on_chain_job()},
        {name(5): replace(final, provider=OTHERS)},
        {name(5): replace(final, customer=Address(STRANGER))},
    ):
        assert [
            discrepancy.cancel
            for discrepancy in find_discrepancies(replace(view, chain=chain))
        ] == [None]
    assert find_discrepancies(replace(view, chain={})) == []
    for other in (
        row(5, comment="benchmark"),
        row(5, name="benchmark"),
        row(5, comment="supervisor there:3000"),
    ):
        assert find_discrepancies(seeing(rows=[other], chain={name(5): final})) == []
    assert (
        find_discrepancies(seeing(rows=[row(5, "COMPLETED")], chain={name(5): final}))
        == []
    )


def test_find_discrepancies__second_slurm_job__is_cancelled_while_the_first_lives() -> (
    None
):
    (found,) = find_discrepancies(seeing(known(1), rows=[row(1), row(2, number=1)]))
    assert (found.kind, found.cancel) == (DiscrepancyKind.DUPLICATE, 2)


def test_find_discrepancies__a_second_slurm_job__is_cancelled_and_the_ledgers_is_not() -> (
    None
):
    view = seeing(known(1), rows=[row(1, "COMPLETED"), row(2, number=1)])
    (first,) = of_kind(find_discrepancies(view), DiscrepancyKind.DUPLICATE)
    assert (first.kind, first.cancel, doubts(view, [first])) == (
        DiscrepancyKind.DUPLICATE,
        None,
        {f"duplicate {name(1)} 2": 0.0},
    )
    assert doubts(
        replace(view, previous_doubts={f"duplicate {name(1)} 2": 9.0}, slurm=None), []
    ) == {f"duplicate {name(1)} 2": 9.0}
    again = replace(view, previous_doubts={f"duplicate {name(1)} 2": GRACE_S})
    (second,) = of_kind(find_discrepancies(again), DiscrepancyKind.DUPLICATE)
    assert second.cancel == SlurmId(2)
    strangers = row(2, number=1, user=STRANGER)
    assert [
        discrepancy.cancel
        for discrepancy in find_discrepancies(
            seeing(known(1), rows=[row(1), strangers])
        )
    ] == [None]


def test_find_discrepancies__slurm_gave_the_id_of_a_lost_job_again__is_in_order() -> (
    None
):
    lost, new = (
        known(1, slurm_id=SlurmId(7), slurm_submit_s=500),
        known(2, slurm_id=SlurmId(7), slurm_submit_s=1000),
    )
    for jobs in ((lost, new), (new, lost)):  # one of them is the last with that id
        view = seeing(
            *jobs,
            rows=[row(7, number=2)],
            previous_doubts={f"duplicate {name(2)} 7": GRACE_S},
        )
        assert find_discrepancies(view) == []
        assert [job.job_id for job in view.missing] == [name(1)]


def test_find_discrepancies__claimed_and_never_seen__taken_in_with_slurms_job() -> None:
    running, scheduled = on_chain_job(), on_chain_job(ChainStatus.SCHEDULED)
    saw = ChainStatusObserved(ChainStatus.RUNNING)
    for active, rows, events in (
        (scheduled, [], (CLAIM,)),
        (scheduled, [row(7, number=1)], (CLAIM, ExistingSlurmJobAdopted(SlurmId(7)))),
        (scheduled, [row(7, "CANCELLED", number=1)], (CLAIM,)),
        (
            running,
            [row(7, number=1)],
            (CLAIM, saw, ExistingSlurmJobAdopted(SlurmId(7))),
        ),
        (
            running,
            [row(7, number=1, user=STRANGER)],
            (CLAIM, saw, ExistingSlurmJobAdopted(None)),
        ),
        (running, [], (CLAIM, saw, ExistingSlurmJobAdopted(None))),
    ):
        view = seeing(rows=rows, claims={name(1): CLAIM}, chain={name(1): active})
        assert only(view).events == events
        assert find_discrepancies(replace(view, slurm=None)) == []
        assert DiscrepancyKind.NEVER_SEEN not in {
            discrepancy.kind
            for discrepancy in find_discrepancies(
                replace(view, historical_matches=None)
            )
        }
    for final in (on_chain_job(ChainStatus.FINISHED), on_chain_job(provider=OTHERS)):
        assert (
            never_seen(seeing(rows=[], claims={name(1): CLAIM}, chain={name(1): final}))
            == []
        )


def test_find_discrepancies__one_never_seen_is_undecided__the_other_is_taken_in() -> (
    None
):
    view = seeing(
        rows=[],
        claims={name(1): CLAIM, name(2): replace(CLAIM, job_id=name(2))},
        chain={name(1): on_chain_job(), name(2): on_chain_job()},
        undecided_histories={name(1)},
    )
    assert found(view) == [(DiscrepancyKind.NEVER_SEEN, name(2))]


def test_find_discrepancies__another_ledgers_claim__told_while_active_left_alone() -> (
    None
):
    view = seeing(
        rows=[row(7, number=1)],
        foreign_claim_tags={name(1): "ab" * 8},
        chain={name(1): on_chain_job()},
    )
    assert found(view) == [
        (DiscrepancyKind.FOREIGN_CLAIM, name(1)),
        (DiscrepancyKind.UNIDENTIFIED, name(1)),
    ]
    assert not [
        discrepancy
        for discrepancy in find_discrepancies(view)
        if discrepancy.events or discrepancy.cancel
    ]
    for final in (on_chain_job(ChainStatus.FINISHED), on_chain_job(provider=OTHERS)):
        assert DiscrepancyKind.FOREIGN_CLAIM not in dict(
            found(replace(view, chain={name(1): final}))
        )
    assert find_discrepancies(replace(view, chain=None)) == []


def test_find_discrepancies__never_seen_and_renamed__has_the_id_of_its_history() -> (
    None
):
    renamed = seeing(
        rows=[row(7, number=7)],
        claims={name(1): CLAIM},
        chain={name(1): on_chain_job()},
        historical_matches={name(1): SlurmId(7)},
    )
    assert [
        discrepancy.slurm_id
        for discrepancy in of_kind(
            find_discrepancies(renamed), DiscrepancyKind.NEVER_SEEN
        )
    ] == [7]


def test_find_discrepancies__an_effect_that_should_be_open__is_opened() -> None:
    for state, kind in (
        (State.CLAIMED, EffectKind.FETCH),
        (State.READY, EffectKind.SUBMIT),
        (State.SUBMITTING, EffectKind.SUBMIT),
        (State.QUEUED, EffectKind.POLL_SLURM),
        (State.RUNNING, EffectKind.POLL_SLURM),
        (State.ENDED, EffectKind.REPORT),
        (State.REFUSED, EffectKind.RETURN_JOB),
    ):
        job = known(state=state, open=frozenset(set(EffectKind) - {kind}))
        assert only(seeing(job, rows=[row(1, "PENDING")])).events == (
            EffectMissing(kind),
        )
        assert (
            find_discrepancies(
                seeing(
                    replace(job, open=frozenset(EffectKind)), rows=[row(1, "PENDING")]
                )
            )
            == []
        )
    unreported = known(chain_status=ChainStatus.SCHEDULED, open=POLLED)
    assert only(seeing(unreported, rows=[row()])).events == (
        EffectMissing(EffectKind.REPORT),
    )
    assert only(seeing(known(cancel_requested=True), rows=[row()])).events == (
        EffectMissing(EffectKind.CANCEL),
    )


ACTIVE = [state for state in State if state is not State.SETTLED]
JOBS = st.builds(
    known,
    st.integers(1, 6),
    st.sampled_from(ACTIVE),
    slurm_id=st.none() | st.integers(1, 8).map(SlurmId),
    has_unread_callback=st.booleans(),
    parked=st.sampled_from([frozenset[EffectKind](), POLLED]),
    slurm_submit_s=st.sampled_from([None, 1000, 2000]),
)
ROWS = st.builds(
    row,
    st.integers(1, 8),
    st.sampled_from(["RUNNING", "PENDING", "COMPLETED", "CANCELLED", "COMPLETING"]),
    st.integers(1, 8),
    user=st.sampled_from([CUSTOMER, STRANGER]),
    comment=st.sampled_from([OUR_COMMENT, "benchmark"]),
)
CHAIN = st.dictionaries(
    st.integers(1, 8).map(name),
    st.builds(
        on_chain_job, st.sampled_from(ChainStatus), st.sampled_from([US, OTHERS])
    ),
    max_size=8,
)


def old_doubts(
    jobs: Sequence[JobSummary], rows: Sequence[SqueueRow]
) -> dict[str, float]:
    """All doubts that there can be about these jobs, as old as the grace."""
    missing = [f"missing {job.job_id}" for job in jobs]
    duplicate = [
        f"duplicate {job.job_id} {listed.slurm_id}" for job in jobs for listed in rows
    ]
    return dict.fromkeys([*missing, *duplicate], GRACE_S)


VIEWS = st.builds(
    lambda jobs, rows, chain, old, traces: seeing(
        *jobs,
        rows=rows,
        chain=chain,
        confirmed_lookups={job.job_id: None for job in jobs},
        traces=traces,
        previous_doubts=old_doubts(jobs, rows) if old else {},
    ),
    st.lists(JOBS, max_size=6, unique_by=lambda job: job.job_id),
    st.lists(ROWS, max_size=8, unique_by=lambda listed: listed.slurm_id),
    CHAIN,
    st.booleans(),
    st.dictionaries(st.integers(1, 6).map(name), st.sampled_from(Trace), max_size=6),
)


@given(VIEWS)
def test_find_discrepancies__any_snapshot__cancels_only_our_tag_and_no_live_job(
    view: Snapshot,
) -> None:
    assert view.slurm is not None
    for discrepancy in find_discrepancies(view):
        if discrepancy.cancel is not None:
            listed = view.slurm[discrepancy.cancel]
            assert (listed.comment, listed.user, listed.name) == (
                OUR_COMMENT,
                CUSTOMER,
                discrepancy.job_id,
            )
            by_id = [
                job
                for job in view.jobs.values()
                if job.slurm_id == discrepancy.cancel and not job.is_final
            ]
            assert all(job.job_id != discrepancy.job_id for job in by_id)


@given(VIEWS)
def test_find_discrepancies__a_side_does_not_answer__nothing_is_ended_or_given_away(
    view: Snapshot,
) -> None:
    blind_to_slurm = find_discrepancies(replace(view, slurm=None))
    assert not any(
        isinstance(event, SlurmJobMissing | ExistingSlurmJobAdopted)
        for found in blind_to_slurm
        for event in found.events
    )
    assert all(found.cancel is None for found in blind_to_slurm)
    blind_to_chain = find_discrepancies(replace(view, chain=None))
    assert not any(
        isinstance(event, ChainStatusObserved)
        for found in blind_to_chain
        for event in found.events
    )
    assert all(
        found.cancel is None or found.kind is DiscrepancyKind.DUPLICATE
        for found in blind_to_chain
    )
    unsure = find_discrepancies(replace(view, confirmed_lookups={}))
    assert not any(
        isinstance(event, SlurmJobMissing) for found in unsure for event in found.events
    )


@given(VIEWS)
def test_find_discrepancies__any_view__ends_no_more_than_may_be_lost_by_chance(
    view: Snapshot,
) -> None:
    lost = [
        found
        for found in find_discrepancies(view)
        if found.kind is DiscrepancyKind.LOST
    ]
    assert len(lost) <= MIN_LOST_JOBS
    assert view.slurm or not lost


@given(VIEWS)
def test_find_discrepancies__submitted_again__only_what_waited_and_left_no_trace(
    view: Snapshot,
) -> None:
    for discrepancy in find_discrepancies(view):
        if any(
            isinstance(event, SubmissionLostBySlurm) for event in discrepancy.events
        ):
            job = view.jobs[discrepancy.job_id]
            assert (job.state, job.chain_status, job.has_unread_callback) == (
                State.QUEUED,
                ChainStatus.SCHEDULED,
                False,
            )
            assert view.traces[job.job_id] is Trace.NONE
            assert view.confirmed_by_earlier_sweep(DiscrepancyKind.MISSING, job.job_id)
            assert job in view.missing


PAID = Paid(
    Definition(
        gpus=0, mem_per_cpu_mb=100, cpus_per_task=1, ntasks=1, batch_location_hash=""
    ),
    10,
    "main",
)
AS_PAID = Size(limit_min=10, cpus=1, memory_mb=100, nodes=1, gpus=0, partition="main")


@pytest.mark.parametrize(
    ("job", "size", "submit_s", "found"),
    [
        ({}, AS_PAID, 1000, []),
        ({}, replace(AS_PAID, limit_min=5, cpus=0), 1000, []),
        ({}, replace(AS_PAID, limit_min=600), 1000, [DiscrepancyKind.MORE_THAN_PAID]),
        ({}, replace(AS_PAID, gpus=2), 1000, [DiscrepancyKind.MORE_THAN_PAID]),
        ({}, AS_PAID, 1075, [DiscrepancyKind.RUNS_AGAIN]),
        ({"slurm_submit_s": None}, AS_PAID, 1075, []),
        (
            {
                "stopped": True,
                "open": frozenset({EffectKind.POLL_SLURM, EffectKind.CANCEL}),
            },
            replace(AS_PAID, gpus=2),
            1000,
            [],
        ),
        ({"parked": frozenset({EffectKind.POLL_SLURM})}, AS_PAID, 1000, []),
        (
            {"parked": frozenset({EffectKind.POLL_SLURM})},
            replace(AS_PAID, gpus=2),
            1000,
            [DiscrepancyKind.MORE_THAN_PAID],
        ),
        (
            {"parked": frozenset({EffectKind.POLL_SLURM})},
            AS_PAID,
            1075,
            [DiscrepancyKind.RUNS_AGAIN],
        ),
    ],
)
def test_find_discrepancies__other_size_or_runs__slurm_is_polled(
    job: dict[str, Any], size: Size, submit_s: int, found: list[DiscrepancyKind]
) -> None:
    seen = JobRecord(SlurmId(1), "RUNNING", 60, 0, submit_s=submit_s, size=size)
    about: dict[str, Any] = {"paid": PAID, "slurm_submit_s": 1000} | job
    view = seeing(known(**about), rows=[row(record=seen, submit_s=submit_s)])
    discrepancies = find_discrepancies(view)
    assert [discrepancy.kind for discrepancy in discrepancies] == found
    assert all(
        discrepancy.events == (EffectMissing(EffectKind.POLL_SLURM),)
        for discrepancy in discrepancies
    )
