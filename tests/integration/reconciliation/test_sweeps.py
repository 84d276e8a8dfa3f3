"""What the sweep reads and writes, on a real Postgres."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from devgrid.machine import deadline
from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import Alarm, AlarmName
from supervisor_tasks.jobs.callback_fallback import ENDED
from supervisor_tasks.jobs.events import (
    CancelRequested,
    ChainStatusObserved,
    EffectMissing,
    LimitApplied,
    OperatorAbandonedEffect,
    SlurmRunningObserved,
    ToppedUp,
)
from supervisor_tasks.jobs.model import ChainStatus, EffectKind, JobId, SlurmId, State
from supervisor_tasks.ledger import operator_actions
from supervisor_tasks.ledger.fact_store import Facts
from supervisor_tasks.ledger.facts import SLURM_BOOT_TIME, SWEEP_REQUESTED, Fact
from supervisor_tasks.ledger.foreign_claims import ForeignClaim
from supervisor_tasks.ledger.heartbeats import (
    HEARTBEAT_MISSING_AFTER_S,
    MAX_REPORTERS,
    REPORTER,
    continuous_uptime_s,
    known_reporters,
    missing_sources,
    record_heartbeats,
    reporter_of,
)
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.outbox import Failure
from supervisor_tasks.ledger.periodic_run_names import CALLBACKS
from supervisor_tasks.ledger.status_queries import Overview
from supervisor_tasks.ledger.switch_names import Switch
from supervisor_tasks.monitoring.heartbeat_alarm import MISSED_S, update_heartbeat_alarm
from supervisor_tasks.reconciliation.rules import find_discrepancies
from supervisor_tasks.reconciliation.snapshot import DiscrepancyKind, Snapshot
from supervisor_tasks.reconciliation.source_outages import (
    UNSEEN_ALARM_AFTER_S,
    update_unreachable_alarm,
)
from supervisor_tasks.reconciliation.unlisted_histories import has_unstored_claims
from supervisor_tasks.slurm.cluster_identity import ClusterIdentity
from supervisor_tasks.slurm.interface import Controller
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.squeue import SqueueRow
from supervisor_tasks.slurm_lookup.cluster_check import record_controller_start
from tests.support.ledger import bring_to_queued, claim, job_id, let_time_pass

REPORT = {"again_s": 900.0, "needs_operator": {}}


def execute(ledger: Ledger, statement: str, **parameters: object) -> None:
    with ledger.engine.begin() as connection:
        connection.execute(text(statement), parameters)


def test_active__effect_of_another_release__is_left_out(ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    before = ledger.reconciliations.active()[job_id(1)]
    assert before.open
    execute(
        ledger,
        "INSERT INTO effects (cluster, job_id, kind, due_at, parked_at)"
        " VALUES ('here', :job_id, 'other_kind', now(), now())",
        job_id=job_id(1),
    )
    assert ledger.reconciliations.active()[job_id(1)] == before


def test_due__first_or_asked_for_or_after_its_time__is_true(ledger: Ledger) -> None:
    reconciliations = ledger.reconciliations
    assert reconciliations.due()
    reconciliations.store(reconciliations.begin("first"), REPORT, {})
    assert not reconciliations.due()
    reconciliations.request("a worker wants one")
    assert reconciliations.due()
    begun = reconciliations.begin("")
    assert begun.why == "a worker wants one"
    assert reconciliations.due()  # the worker that makes it may die of it
    reconciliations.store(begun, REPORT, {})
    assert not reconciliations.due()
    execute(ledger, "UPDATE reconciliations SET begun_at = begun_at - interval '901 s'")
    assert reconciliations.due()
    # each cluster has its own
    assert Ledger(ledger.engine, "there", dispatch=lambda _: None).reconciliations.due()


def test_begin__asked_for_by_two__names_both(ledger: Ledger) -> None:
    reconciliations = ledger.reconciliations
    reconciliations.request("a worker wants one")
    begun = reconciliations.begin("the operator")
    assert begun.why == "the operator; a worker wants one"
    reconciliations.store(begun, REPORT, {})
    assert reconciliations.begin("the operator").why == "the operator"
    assert reconciliations.begin("").why == "beat"
    for why in ("one", "100% of another", "one"):
        reconciliations.request(why)
    assert reconciliations.begin("").why == "one; 100% of another"


def test_begin__asked_for_while_it_waits__is_not_older_than_the_request(
    ledger: Ledger,
) -> None:
    """`sweep run` waits for a report that began after its request, and `keep` deletes a
    request that the sweep has seen.
    """
    waiting = text(
        "SELECT FROM pg_locks WHERE NOT granted AND relation = 'facts'::regclass"
    )
    ask = text(
        "INSERT INTO facts (cluster, name, value, since) VALUES ('here', :name, 'one', clock_timestamp())"
    )
    with ThreadPoolExecutor(1) as pool:
        with ledger.engine.begin() as connection:
            connection.execute(text("LOCK TABLE facts IN ACCESS EXCLUSIVE MODE"))
            beginning = pool.submit(ledger.reconciliations.begin, "")
            wait_until(
                lambda: connection.execute(waiting).first() is not None,
                "the sweep to wait for the facts",
                30.0,
            )
            connection.execute(ask, {"name": SWEEP_REQUESTED.name})
        begun = beginning.result()
    assert begun.requested_at is not None
    assert begun.at >= begun.requested_at


@pytest.mark.parametrize("why", ["a worker wants one", "a worker wants another"])
def test_ask__while_a_sweep_is_made__one_more_is_due(ledger: Ledger, why: str) -> None:
    reconciliations = ledger.reconciliations
    reconciliations.request("a worker wants one")
    begun = reconciliations.begin("")
    reconciliations.request(
        why
    )  # what it is about may be later than what that sweep has seen
    reconciliations.store(begun, REPORT, {})
    assert reconciliations.due()
    assert why in reconciliations.begin("").why


def test_record_controller_start__killed_before_it_is_stored__leaves_a_sweep_due(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconciliations, set_fact = ledger.reconciliations, Facts.set
    controller = Controller(
        "1700000000", False, ClusterIdentity("main", "6817", ("host",)), 5
    )

    def killed_before(these: Facts, fact: Fact[Any], value: object) -> bool:
        if fact is SLURM_BOOT_TIME:
            raise KeyboardInterrupt
        return set_fact(these, fact, value)

    reconciliations.store(reconciliations.begin(""), REPORT, {})
    monkeypatch.setattr(Facts, "set", killed_before)
    with pytest.raises(KeyboardInterrupt):
        record_controller_start(ledger, controller, 0.0, 1700000000.0)
    monkeypatch.undo()
    assert reconciliations.due()
    for _ in range(2):  # the second time it is no news
        record_controller_start(ledger, controller, 0.0, 1700000000.0)
        begun = reconciliations.begin("")
        assert begun.why in ("slurmctld runs since 1700000000", "beat")
        reconciliations.store(begun, REPORT, {})
        assert not reconciliations.due()
    assert begun.why == "beat"


def test_begin__earlier_doubts__come_with_their_age(ledger: Ledger) -> None:
    ledger.reconciliations.store(
        ledger.reconciliations.begin("first"), REPORT, {"missing 0x1": 40.0}
    )
    execute(
        ledger,
        "UPDATE reconciliations SET previous_doubts = previous_doubts || '{\"missing 0x2\": 0}'",
    )
    doubts = ledger.reconciliations.begin("second").previous_doubts_s
    assert 40.0 <= doubts["missing 0x1"] < 40.0 + deadline(20.0)
    assert doubts["missing 0x2"] > 1e9


def test_keep__after_thousands_of_reports__all_stay_and_are_found_by_number(
    ledger: Ledger,
) -> None:
    """Only their age lets them go: an audit finds all of its time."""
    execute(
        ledger,
        "INSERT INTO reconciliations (cluster, begun_at, report, previous_doubts)"
        " SELECT 'here', now() - interval '300 days', jsonb_build_object('number', number), '{}'"
        " FROM generate_series(1, 6000) AS number",
    )
    (first,) = ledger.reconciliations.last(6000)[-1:]
    ledger.reconciliations.store(ledger.reconciliations.begin("again"), REPORT, {})
    (found,) = ledger.reconciliations.numbered(first.id)
    assert found.report == {"number": 1}
    assert ledger.reconciliations.numbered(0) == []


def test_active_and_named__each_job__has_what_a_comparison_needs(
    ledger: Ledger,
) -> None:
    for number in (1, 2, 3):
        bring_to_queued(ledger, number)
    topped_up = (
        JobChange(job_id(1), ToppedUp("a top-up", 30, (7, 0))),
        JobChange(job_id(1), LimitApplied(40)),
    )
    ledger.record(
        JobChange(job_id(1), SlurmRunningObserved()),
        *topped_up,
        JobChange(job_id(3), ChainStatusObserved(ChainStatus.CANCELLED, (8, 0))),
    )
    execute(
        ledger,
        "UPDATE effects SET parked_at = now() WHERE job_id = :id AND kind = 'poll_slurm'",
        id=job_id(2),
    )
    execute(
        ledger,
        "INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer)"
        " VALUES ('here', :id, 101, 7, 1, 0, '')",
        id=job_id(1),
    )
    active = ledger.reconciliations.active()
    assert set(active) == {job_id(1), job_id(2)}
    first, second = active[job_id(1)], active[job_id(2)]
    assert (first.state, first.slurm_id, first.has_unread_callback) == (
        State.RUNNING,
        SlurmId(101),
        True,
    )
    assert {EffectKind.POLL_SLURM, EffectKind.REPORT} <= first.open
    assert (first.earlier_limits_min, second.earlier_limits_min) == (
        frozenset({10}),
        frozenset(),
    )
    assert (second.parked, second.has_unread_callback) == (
        frozenset({EffectKind.POLL_SLURM}),
        False,
    )
    named = ledger.reconciliations.named([job_id(2)], [SlurmId(103)])
    assert set(named) == {job_id(2), job_id(3)}
    assert named[job_id(3)].is_final
    assert ledger.reconciliations.named([], []) == {}


def test_first_claim__blocks_read_out_of_order__is_the_lowest_block(
    ledger: Ledger,
) -> None:
    for number, block in ((1, 70), (2, 50), (3, 10)):
        event = replace(claim(number), at=(block, 4))
        ledger.record(JobChange(event.job_id, event))
    assert ledger.journal.first_claim([job_id(1), job_id(2)]) == 50
    assert ledger.journal.first_claim([job_id(1)]) == 70
    assert ledger.journal.first_claim([job_id(9)]) is None


def test_switch__set_for_another_reason_meanwhile__stays(ledger: Ledger) -> None:
    held = Switch.SUBMISSIONS_PAUSED
    ledger.switches.set(held, "a sweep")
    ledger.switches.set(held, "the operator")
    ledger.switches.unset(held, "a sweep")
    assert ledger.switches.reason(held) == "the operator"
    ledger.switches.unset(held, "the operator")
    assert ledger.switches.reason(held) is None


def test_stale__untouched_effects__are_counted(ledger: Ledger) -> None:
    bring_to_queued(ledger, 1)
    assert ledger.reconciliations.stale() == {
        "effects": 0,
        "callbacks": 0,
        "transactions": 0,
    }
    execute(
        ledger,
        "UPDATE effects SET due_at = now() - interval '100 s' WHERE done_at IS NULL",
    )
    execute(
        ledger,
        "INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer, received_at)"
        " VALUES ('here', '0x1', 1, 7, 1, 0, '', now() - interval '100 s')",
    )
    assert ledger.reconciliations.stale() == {
        "effects": 1,
        "callbacks": 1,
        "transactions": 0,
    }


def test_mark_lost__several_jobs__ends_undecided_ones_that_are_still_the_same(
    ledger: Ledger,
) -> None:
    for number in (1, 2, 3):
        bring_to_queued(ledger, number)
    lost = {job_id(1): 101, job_id(2): 999}
    ledger.reconciliations.store(
        ledger.reconciliations.begin("first"), REPORT | {"needs_operator": lost}, {}
    )
    assert operator_actions.mark_lost(ledger, [job_id(3)]) == []
    # the second one has another SLURM id by now
    assert operator_actions.mark_lost(ledger) == [job_id(1)]
    jobs = ledger.jobs([job_id(1), job_id(2), job_id(3)])
    assert [jobs[job_id(number)].state for number in (1, 2, 3)] == [
        State.ENDED,
        State.QUEUED,
        State.QUEUED,
    ]
    outcome = jobs[job_id(1)].outcome
    assert outcome is not None
    assert (outcome.status, outcome.minutes) == (ChainStatus.PANICKED, 0)
    assert ledger.reconciliations.due()


def test_foreign_claims__kept_again_or_taken_over__stay_until_they_are_deleted(
    ledger: Ledger,
) -> None:
    others = ledger.foreign_claims
    first, second = (
        ForeignClaim(b"first---", claim(1)),
        ForeignClaim(b"second--", claim(2)),
    )
    others.store([first, second])
    others.store([first])
    assert others.all() == {job_id(1): first, job_id(2): second}
    others.adopt_tag(b"first---")
    others.adopt_tag(b"first---")
    assert (others.adopted_tags(), dict(others.count())) == (
        {b"first---"},
        {b"second--": 1},
    )
    others.delete([job_id(1)])
    assert set(others.all()) == {job_id(2)}
    assert (
        Ledger(ledger.engine, "there", dispatch=lambda _: None).foreign_claims.all()
        == {}
    )


def test_has_unstored_claims__undecided_job__until_its_tag_is_taken_over(
    ledger: Ledger,
) -> None:
    view = Snapshot(
        provider=claim(1).provider, comment="", jobs={}, claims={job_id(1): claim(1)}
    )
    assert not has_unstored_claims(ledger, view)
    view = replace(view, undecided_histories={job_id(1)})
    assert has_unstored_claims(ledger, view)
    ledger.foreign_claims.store([ForeignClaim(b"first---", claim(1))])
    assert has_unstored_claims(ledger, view)
    ledger.foreign_claims.adopt_tag(b"first---")
    assert not has_unstored_claims(ledger, view)


def test_keep__words_that_postgres_cannot_hold__are_kept_all_the_same(
    ledger: Ledger,
) -> None:
    report = REPORT | {"unseen": {"chain": "no\0 \ud800"}}
    ledger.reconciliations.store(ledger.reconciliations.begin("again"), report, {})
    assert ledger.reconciliations.last()[0].report["unseen"] == {
        "chain": "no\\x00 \\ud800"
    }


def heard(ledger: Ledger, *names: str) -> None:
    with ledger.engine.begin() as connection:
        record_heartbeats(connection.exec_driver_sql, "here", names)


def alarm(ledger: Ledger, name: AlarmName) -> Alarm | None:
    return next((alarm for alarm in ledger.alarms.all() if alarm.name == name), None)


def test_heartbeats__after_a_gap__uptime_restarts(ledger: Ledger) -> None:
    assert continuous_uptime_s(ledger.periodic_runs.ages_s()) is None
    for _ in range(3):
        heard(ledger, CALLBACKS)
        let_time_pass(
            ledger.engine, HEARTBEAT_MISSING_AFTER_S / 2
        )  # and the time that the test itself takes
    heard(ledger, CALLBACKS, REPORTER)
    ages_s = ledger.periodic_runs.ages_s()
    assert ages_s["callbacks without a gap"] >= 3 * HEARTBEAT_MISSING_AFTER_S / 2
    assert (
        continuous_uptime_s(ages_s) or 0.0
    ) < HEARTBEAT_MISSING_AFTER_S  # of the reporter
    let_time_pass(ledger.engine, HEARTBEAT_MISSING_AFTER_S + 1)
    assert continuous_uptime_s(ledger.periodic_runs.ages_s()) is None
    heard(ledger, CALLBACKS, REPORTER)
    let_time_pass(ledger.engine, -3600.0)  # the database's clock is set back
    assert continuous_uptime_s(ledger.periodic_runs.ages_s()) is None
    heard(ledger, CALLBACKS, REPORTER)
    assert (continuous_uptime_s(ledger.periodic_runs.ages_s()) or -1.0) > -1.0
    assert (
        continuous_uptime_s(ledger.periodic_runs.ages_s()) or HEARTBEAT_MISSING_AFTER_S
    ) < HEARTBEAT_MISSING_AFTER_S


def test_heartbeat_alarm__source_is_missing__is_on_until_the_source_is_back(
    ledger: Ledger,
) -> None:
    heard(ledger, CALLBACKS, REPORTER)
    let_time_pass(ledger.engine, 3600.0)  # all of ours was down
    heard(ledger, CALLBACKS)
    for _ in range(2):
        update_heartbeat_alarm(ledger)
        assert alarm(ledger, AlarmName.CALLBACK_HEARTBEAT_MISSING) is None
    let_time_pass(ledger.engine, MISSED_S + 1)
    heard(ledger, CALLBACKS)
    update_heartbeat_alarm(ledger)
    called = alarm(ledger, AlarmName.CALLBACK_HEARTBEAT_MISSING)
    assert called is not None
    assert set(called.details["silent_s"]) == {REPORTER}
    assert "reporter disable" in called.details["advice"]
    heard(ledger, REPORTER)
    update_heartbeat_alarm(ledger)
    assert alarm(ledger, AlarmName.CALLBACK_HEARTBEAT_MISSING) is None
    let_time_pass(ledger.engine, HEARTBEAT_MISSING_AFTER_S + 1)
    heard(ledger, REPORTER)
    update_heartbeat_alarm(ledger)
    # the time in which they are missed restarts
    assert alarm(ledger, AlarmName.CALLBACK_HEARTBEAT_MISSING) is None


def test_heartbeat_alarm__one_of_two_reporters_is_missing__names_its_node(
    ledger: Ledger,
) -> None:
    stopped, beats = reporter_of("ctl1"), reporter_of("ctl2")
    heard(ledger, CALLBACKS, stopped, beats)
    let_time_pass(ledger.engine, HEARTBEAT_MISSING_AFTER_S + 1)
    heard(ledger, CALLBACKS, beats)
    assert set(missing_sources(ledger.periodic_runs.ages_s())) == {stopped}
    update_heartbeat_alarm(ledger)
    let_time_pass(ledger.engine, MISSED_S + 1)
    heard(ledger, CALLBACKS, beats)
    update_heartbeat_alarm(ledger)
    called = alarm(ledger, AlarmName.CALLBACK_HEARTBEAT_MISSING)
    assert called is not None
    assert set(called.details["silent_s"]) == {stopped}
    assert "reporter disable NODE" in called.details["advice"]
    assert "gRPC" not in called.details["advice"]


def test_heartbeats__callers_name_more_nodes_than_count__the_known_ones_go_on(
    ledger: Ledger,
) -> None:
    """At a site without a key, a stranger can make up nodes."""
    names = [reporter_of(f"ctl{number}") for number in range(2 * MAX_REPORTERS)]
    known, others = names[:MAX_REPORTERS], names[MAX_REPORTERS:]
    heard(ledger, CALLBACKS, *known)
    rows = ledger.periodic_runs.ages_s()
    heard(ledger, *others)
    assert ledger.periodic_runs.ages_s().keys() == rows.keys()
    let_time_pass(ledger.engine, HEARTBEAT_MISSING_AFTER_S + 1)
    heard(ledger, CALLBACKS, *known)
    assert missing_sources(ledger.periodic_runs.ages_s()) == {}


def test_heartbeats__reporter_names_its_node_after_an_upgrade__former_run_is_gone(
    ledger: Ledger,
) -> None:
    heard(ledger, CALLBACKS, REPORTER)
    heard(ledger, CALLBACKS)
    assert known_reporters(ledger.periodic_runs.ages_s()) == [REPORTER]
    heard(ledger, reporter_of("ctl1"))
    assert ledger.periodic_runs.ages_s().keys() == {
        "callbacks",
        "callbacks without a gap",
        "reporter ctl1",
        "reporter ctl1 without a gap",
    }


def test_update_unreachable_alarm__same_side_unseen_for_an_hour__is_on_until_seen(
    ledger: Ledger,
) -> None:
    unseen = {"slurm": "an unreadable row", "chain": "refused"}
    update_unreachable_alarm(
        ledger, unseen, {"slurm": 1.0, "chain": 1.0}, UNSEEN_ALARM_AFTER_S
    )
    assert alarm(ledger, AlarmName.RECONCILIATION_SOURCE_UNREACHABLE) is None
    update_unreachable_alarm(
        ledger, unseen, {"slurm": 1.0, "chain": 2.0}, UNSEEN_ALARM_AFTER_S + 1
    )
    called = alarm(ledger, AlarmName.RECONCILIATION_SOURCE_UNREACHABLE)
    assert called is not None
    assert called.details["errors"] == {"slurm": "an unreadable row"}
    update_unreachable_alarm(ledger, {}, {}, UNSEEN_ALARM_AFTER_S + 2)
    assert alarm(ledger, AlarmName.RECONCILIATION_SOURCE_UNREACHABLE) is None


def test_jobs_reported_as__ends_unread_or_young__under_the_jobs_slurm_id(
    ledger: Ledger,
) -> None:
    asked = {job_id(number): SlurmId(100 + number) for number in range(1, 6)}
    said = (
        (1, 101, 7, True, 0),
        (2, 102, 7, False, 3600),
        (3, 103, 7, True, 3600),
        (4, 999, 7, False, 0),
        (5, 105, 4, False, 0),
    )
    for number, slurm_id, status, read, ago_s in said:
        execute(
            ledger,
            "INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer, received_at, read_at)"
            " VALUES ('here', :id, :slurm_id, :status, 1, 0, '', now() - make_interval(secs => :ago_s),"
            " CASE WHEN :read THEN now() END)",
            id=job_id(number), slurm_id=slurm_id, status=status, ago_s=ago_s, read=read,
        )  # fmt: skip
    assert ledger.callbacks.jobs_reported_as(asked, ENDED, 300.0) == {
        job_id(1),
        job_id(2),
    }
    assert ledger.callbacks.jobs_proven_as(asked, ENDED) == set()
    execute(ledger, "UPDATE callbacks SET proof = 'proven'")
    proven = ledger.callbacks.jobs_proven_as(asked, ENDED)
    assert proven == {job_id(1), job_id(2), job_id(3)}
    assert ledger.callbacks.jobs_proven_as({}, ENDED) == set()


# --- what the operator gave up --------------------------------------------------------


def swept(ledger: Ledger) -> list[tuple[DiscrepancyKind, JobId]]:
    """What a sweep finds where SLURM runs job 1 with the limit that it was claimed
    for.
    """
    jobs = ledger.reconciliations.active()
    (job,) = jobs.values()
    assert job.slurm_id is not None
    seen = JobRecord(job.slurm_id, "RUNNING", 60, 0)
    row = SqueueRow(
        job.slurm_id,
        job.customer,
        job.job_id,
        "supervisor",
        "",
        1000,
        seen,
        limit_min=10,
    )
    view = Snapshot(
        provider=job.provider,
        comment="supervisor",
        jobs=jobs,
        slurm={job.slurm_id: row},
    )
    return [
        (discrepancy.kind, discrepancy.job_id)
        for discrepancy in find_discrepancies(view)
    ]


def test_forgotten__cancellation__is_no_sweeps_any_more_until_it_is_asked_for_again(
    ledger: Ledger,
) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(JobChange(job_id(1), CancelRequested()))
    give_up(ledger, EffectKind.CANCEL)
    assert swept(ledger) == []
    ledger.record(JobChange(job_id(1), CancelRequested(at=(9, 0))))
    assert EffectKind.CANCEL in ledger.reconciliations.active()[job_id(1)].open


def test_sweep__lost_limit_was_given_up__is_left_alone_until_another_top_up(
    ledger: Ledger,
) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(
        *(
            JobChange(job_id(1), event)
            for event in (SlurmRunningObserved(), ToppedUp("1", 5), LimitApplied(15))
        )
    )
    ledger.record(JobChange(job_id(1), EffectMissing(EffectKind.TOP_UP)))
    give_up(ledger, EffectKind.TOP_UP)
    assert swept(ledger) == []
    ledger.record(JobChange(job_id(1), ToppedUp("2", 5)))
    assert EffectKind.TOP_UP in ledger.reconciliations.active()[job_id(1)].open


def test_forgotten__top_up_that_slurm_rejected__is_no_sweeps_any_more(
    ledger: Ledger,
) -> None:
    bring_to_queued(ledger, 1)
    ledger.record(
        *(
            JobChange(job_id(1), event)
            for event in (SlurmRunningObserved(), ToppedUp("1", 5))
        )
    )
    give_up(ledger, EffectKind.TOP_UP)
    assert swept(ledger) == []


def give_up(ledger: Ledger, kind: EffectKind) -> None:
    """It is refused, parked, and forgotten by the operator."""
    (effect,) = ledger.effects.lease([kind])
    ledger.effects.park([Failure(effect, "refused")])
    (parked,) = Overview(ledger.engine, ledger.cluster).parked()
    operator_actions.abandon(
        ledger,
        effect.id,
        parked["parked_at"],
        effect.job_id,
        OperatorAbandonedEffect(kind, "SLURM will not"),
    )
    assert kind not in ledger.reconciliations.active()[effect.job_id].open
