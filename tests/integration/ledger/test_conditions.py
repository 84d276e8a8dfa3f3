"""What is wrong only when it lasts, on a real Postgres and by its clock."""

from sqlalchemy import Engine

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.ledger.conditions import Condition, Duration
from supervisor_tasks.ledger.ledger import Ledger
from tests.support.ledger import let_time_pass

AFTER_S = 60.0
NAME = AlarmName.CHAIN_SCAN_STALLED


def on(ledger: Ledger) -> list[str]:
    return [alarm.name for alarm in ledger.alarms.all()]


def test_condition__wrong_for_long__is_an_alarm_after_its_time_and_not_before(
    ledger: Ledger,
) -> None:
    condition = Condition(ledger, NAME, AFTER_S)
    assert condition.update(True, error="first") == 0.0
    let_time_pass(ledger.engine, AFTER_S - 30)
    assert AFTER_S - 30 <= condition.update(True, error="second") < AFTER_S
    assert on(ledger) == []
    let_time_pass(ledger.engine, 31)
    assert condition.update(True, error="third") > AFTER_S
    (alarm,) = ledger.alarms.all()
    assert alarm.details["error"] == "third"
    assert AFTER_S < alarm.details["for_s"] < AFTER_S + 30


def test_condition__right_again__ends_the_alarm_and_restarts_its_time(
    ledger: Ledger,
) -> None:
    condition = Condition(ledger, NAME, AFTER_S)
    condition.update(True)
    let_time_pass(ledger.engine, AFTER_S + 1)
    condition.update(True)
    assert on(ledger) == [NAME]
    assert condition.update(False) == 0.0
    assert on(ledger) == []
    condition.update(True)
    assert on(ledger) == []


def test_condition__of_another_subject__counts_from_the_beginning(
    ledger: Ledger,
) -> None:
    condition = Condition(ledger, NAME, AFTER_S)
    condition.update(True, "7")
    let_time_pass(ledger.engine, AFTER_S + 1)
    assert condition.update(True, "8") == 0.0
    assert on(ledger) == []
    assert condition.duration.subject() == "8"


def test_condition__seen_by_a_worker_that_is_started_again__goes_on(
    ledger: Ledger, engine: Engine
) -> None:
    Condition(ledger, NAME, AFTER_S).update(True)
    let_time_pass(ledger.engine, AFTER_S + 1)
    again = Ledger(engine, "here", dispatch=lambda _: None)
    Condition(again, NAME, AFTER_S).update(True)
    assert on(ledger) == [NAME]


def test_condition__database_clock_set_back__counts_from_the_beginning(
    ledger: Ledger,
) -> None:
    condition = Condition(ledger, NAME, AFTER_S)
    condition.update(True)
    let_time_pass(ledger.engine, -3600)
    assert condition.update(True) == 0.0
    let_time_pass(ledger.engine, AFTER_S + 1)
    condition.update(True)
    assert on(ledger) == [NAME]


def test_condition__without_a_time__is_an_alarm_at_once(ledger: Ledger) -> None:
    Condition(ledger, NAME).update(True)
    assert on(ledger) == [NAME]


def test_conditions__of_one_name__share_their_duration(ledger: Ledger) -> None:
    Condition(ledger, AlarmName.NODE_BEHIND, AFTER_S, name="chain_scan_stalled").update(
        True, "7"
    )
    let_time_pass(ledger.engine, AFTER_S + 1)
    Condition(ledger, NAME, AFTER_S).update(True, "7")
    assert on(ledger) == [NAME]


def test_condition__by_a_periodic_run__counts_from_when_that_was_left(
    ledger: Ledger,
) -> None:
    condition = Condition(ledger, NAME, AFTER_S, run_name="chain")
    ledger.periodic_runs.record("chain")
    condition.update(True)
    assert on(ledger) == []
    let_time_pass(ledger.engine, AFTER_S + 1)
    condition.update(True)
    assert on(ledger) == [NAME]
    condition.update(False)
    assert on(ledger) == []


def test_condition__by_a_run_that_never_was__is_an_alarm_at_once(
    ledger: Ledger,
) -> None:
    Condition(ledger, NAME, AFTER_S, run_name="chain").update(True)
    (alarm,) = ledger.alarms.all()
    assert alarm.details["for_s"] is None


def test_condition__by_a_run_that_is_old__counts_from_the_first_failure(
    ledger: Ledger,
) -> None:
    condition = Condition(ledger, NAME, AFTER_S, run_name="chain")
    ledger.periodic_runs.record("chain")
    let_time_pass(ledger.engine, AFTER_S + 1)  # no worker ran
    condition.update(True)
    assert on(ledger) == []


def test_condition__not_found_for_longer_than_its_gap__counts_from_the_beginning(
    ledger: Ledger,
) -> None:
    condition = Condition(ledger, NAME, AFTER_S, gap_s=AFTER_S)
    condition.update(True)
    let_time_pass(ledger.engine, AFTER_S - 10)
    assert condition.update(True) >= AFTER_S - 10
    let_time_pass(ledger.engine, AFTER_S + 10)
    assert condition.update(True) == 0.0
    assert on(ledger) == []
    let_time_pass(ledger.engine, AFTER_S - 10)
    condition.update(True)
    let_time_pass(ledger.engine, AFTER_S - 10)
    condition.update(True)
    assert on(ledger) == [NAME]


def test_alarm__seen_not_long_ago__is_not_quiet_yet(ledger: Ledger) -> None:
    ledger.alarms.on(NAME)
    let_time_pass(ledger.engine, AFTER_S - 30)
    ledger.alarms.off(NAME, quiet_s=AFTER_S)
    assert on(ledger) == [NAME]
    ledger.alarms.on(NAME)  # seen again
    let_time_pass(ledger.engine, AFTER_S - 30)
    ledger.alarms.off(NAME, quiet_s=AFTER_S)
    assert on(ledger) == [NAME]
    let_time_pass(ledger.engine, 31)
    ledger.alarms.off(NAME, quiet_s=AFTER_S)
    assert on(ledger) == []


def test_duration__is_not_so__has_none(ledger: Ledger) -> None:
    duration = Duration(ledger.facts, "test")
    assert (duration.update(False), duration.seconds(), duration.subject()) == (
        0.0,
        0.0,
        None,
    )
    duration.update(True, "7")
    let_time_pass(ledger.engine, 10)
    assert duration.seconds("7") >= 10.0
    assert duration.seconds("8") == 0.0
    assert duration.seconds() >= 10.0
