"""What is due, as a real ledger tells it in one question, and that an operator's word
is acted on within a second.
"""

from functools import partial

import pytest
from sqlalchemy import Engine, event, text

from devgrid.machine import deadline
from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.ledger.advisory_locks import try_advisory_lock
from supervisor_tasks.ledger.due import Due, LedgerState
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.lock_names import cluster_lock
from supervisor_tasks.ledger.periodic_run_names import BEAT, QUEUE
from supervisor_tasks.ledger.periodic_runs import PeriodicRuns
from supervisor_tasks.ledger.status_queries import Overview
from supervisor_tasks.ledger.undispatched import not_dispatched
from supervisor_tasks.messaging.due_rules import (
    EXCLUSIVE_TASKS,
    FACTS,
    RuleSettings,
    due,
)
from tests.support.commands import supervisor
from tests.support.ledger import (
    OF_ANOTHER_RELEASE,
    bring_to_queued,
    claim,
    emptied,
    job_id,
    raise_alarm_of_another_release,
    through,
)

JOB = job_id(1)


@pytest.fixture
def engine(engine: Engine) -> Engine:
    """The engine of a ledger without the rows of earlier tests."""
    emptied(engine)
    return engine


def state_of(engine: Engine, cluster: str = "here") -> LedgerState:
    return Due(through(engine), cluster, EXCLUSIVE_TASKS, FACTS).ask()


def test_ask__empty_ledger__a_sweep_alone_and_a_run_of_the_clock(
    engine: Engine,
) -> None:
    found = state_of(engine)
    assert found == LedgerState(sweep=True, hour=found.hour)
    assert (PeriodicRuns(engine, "here").age_s(BEAT) or 99.0) < deadline(10.0)


def test_ask__last_sweep_began_in_the_future__a_sweep_is_due(
    engine: Engine, ledger: Ledger
) -> None:
    sweep = ledger.reconciliations
    sweep.store(sweep.begin("asked"), {"again_s": 60.0}, {})
    assert (state_of(engine).sweep, sweep.due()) == (False, False)
    with engine.begin() as connection:  # the database's clock is set back by an hour
        connection.execute(
            text("UPDATE reconciliations SET begun_at = now() + interval '1 hour'")
        )
    assert (state_of(engine).sweep, sweep.due()) == (True, True)


def test_ask__alarm_of_another_release__is_shown_by_its_name(
    engine: Engine, ledger: Ledger
) -> None:
    ledger.alarms.on(AlarmName.REORGANISED_TOO_DEEP)
    raise_alarm_of_another_release(engine)
    found = state_of(engine)
    assert found.alarms == {AlarmName.REORGANISED_TOO_DEEP, OF_ANOTHER_RELEASE}
    assert "scan" in due(found, RuleSettings())


def test_ask__effect_of_another_release__is_not_due_here(
    engine: Engine, ledger: Ledger
) -> None:
    """Otherwise beat sends a message for it with each question, and no worker takes
    it.
    """
    ledger.record(JobChange(JOB, claim(1)))
    with engine.begin() as connection:
        connection.execute(text("UPDATE effects SET notified_at = NULL"))
    assert state_of(engine).undispatched
    with engine.begin() as connection:
        connection.execute(text("UPDATE effects SET kind = 'of_another_release'"))
    assert not state_of(engine).undispatched


def test_ask__called_again__is_one_statement(engine: Engine) -> None:
    due, statements = Due(through(engine), "here", EXCLUSIVE_TASKS, FACTS), list[str]()
    due.ask()
    event.listen(
        engine, "before_cursor_execute", lambda *args: statements.append(args[2])
    )
    for _ in range(3):
        due.ask()
    assert len(statements) == 3


def test_ask__with_readings__are_stored_with_the_run_of_the_clock(
    engine: Engine,
) -> None:
    due, statements = Due(through(engine), "here", EXCLUSIVE_TASKS, FACTS), list[str]()
    event.listen(
        engine, "before_cursor_execute", lambda *args: statements.append(args[2])
    )
    # the second is within beat's interval, so it is not stored
    for length in (3, 4):
        due.ask(partial(dict, {f"{QUEUE}chain": length}))
    assert sum("INTO periodic_runs" in statement for statement in statements) == 1
    summary = Overview(engine, "here").snapshot()
    assert {name: reading.number for name, reading in summary.queues.items()} == {
        "chain": 3
    }
    assert summary.queues["chain"].age_s < deadline(10.0)
    assert set(summary.periodic_run_ages_s) == {BEAT}


def test_ask__an_effect_whose_message_was_lost__is_undispatched_once_that_is_certain(
    engine: Engine, ledger: Ledger
) -> None:
    ledger.record(JobChange(JOB, claim(1)))
    assert state_of(engine).under_way
    assert not state_of(engine).undispatched  # its message may be under way
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE effects SET notified_at = now() - interval '6 s', due_at = now() - interval '9 s'"
            )
        )
    assert state_of(engine).undispatched
    assert not state_of(engine, "there").undispatched


def test_ask__job_has_ended__is_lately_for_a_while(
    engine: Engine, ledger: Ledger
) -> None:
    ledger.record(JobChange(JOB, claim(1)))
    assert not state_of(engine).ended_lately
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE jobs SET state = 'SETTLED', updated_at = now()")
        )
    assert state_of(engine).ended_lately
    assert not state_of(engine).under_way
    assert not state_of(engine, "there").ended_lately
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE jobs SET updated_at = now() - interval '301 s'")
        )
    assert not state_of(engine).ended_lately


def test_ask__effects_of_a_worker__are_abandoned_only_when_it_is_gone(
    engine: Engine, ledger: Ledger
) -> None:
    ledger.record(JobChange(JOB, claim(1)))
    assert ledger.effects.lease([EffectKind.FETCH])
    assert (state_of(engine).undispatched, state_of(engine).abandoned) == (False, False)
    ledger.holder.close()
    wait_until(
        lambda: state_of(engine).abandoned,
        "Postgres to give up the lock of the connection",
        30.0,
        0.05,
    )


def test_ask__worker_has_the_lock__is_busy(engine: Engine) -> None:
    with (
        try_advisory_lock(engine, cluster_lock("here", "collect_receipts")) as mine,
        try_advisory_lock(engine, cluster_lock("there", "scan")),
    ):
        assert mine
        assert state_of(engine).busy == {"collect_receipts"}
    assert state_of(engine).busy == frozenset()


def test_not_dispatched__no_message_could_be_sent__is_due_at_once(
    engine: Engine, ledger: Ledger
) -> None:
    ledger.effects.dispatch_effects = lambda effects: not_dispatched(engine, effects)
    ledger.record(JobChange(JOB, claim(1)))
    assert state_of(engine).undispatched


def test_settle__of_the_operator__is_due_with_the_next_question(
    migrated_ledger: tuple[Engine, dict[str, str]], engine: Engine, ledger: Ledger
) -> None:
    """A command sends no message: nothing may wait for one that was never sent."""
    bring_to_queued(ledger, 1)
    words = (
        "job",
        "settle",
        JOB,
        "--status",
        "FAILED",
        "--minutes",
        "7",
        "--reason",
        "node burnt down",
        "--yes",
    )
    ended = supervisor(*words, env=migrated_ledger[1])
    assert ended.exit_code == 0, ended.output
    with engine.connect() as connection:
        query = text(
            "SELECT notified_at FROM effects WHERE kind = 'report' AND done_at IS NULL"
        )
        assert list(connection.scalars(query)) == [None]
    assert state_of(engine).undispatched
