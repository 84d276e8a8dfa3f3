"""The alarm about a sweep that is overdue, on a real Postgres and by its clock."""

import pytest

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.grid.grpc_channels import Channels
from supervisor_tasks.grid.job_log import GridLogger
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.periodic_run_names import BEAT, CALLBACKS, finished_key
from supervisor_tasks.ledger.periodic_runs import PeriodicRuns
from supervisor_tasks.monitoring.check_alarms import check_alarms
from supervisor_tasks.monitoring.overdue_sweep import (
    CHECKS_APART_S,
    LEAST_OVERDUE_S,
    SEEN_FOR_S,
)
from tests.support.ledger import let_time_pass

WORKER = finished_key("check_slurm")


def sweep(ledger: Ledger, planned_s: float = 900.0) -> None:
    """As when a sweep has ended now."""
    reconciliations = ledger.reconciliations
    reconciliations.store(reconciliations.begin("test"), {"again_s": planned_s}, {})


def check(ledger: Ledger, *alive: str) -> list[str]:
    """The alarms after a check, with these processes alive."""
    # of its own: one of them does not write a run twice within a second
    PeriodicRuns(ledger.engine, "here").record(*alive)
    PeriodicRuns(ledger.engine, "here").record(CALLBACKS)  # its absence is an alarm
    logger = GridLogger(Channels(False, None, verified=False).open)
    check_alarms(WorkerContext(ledger, logger, None, None, dispatch=lambda _: None))
    return [alarm.name for alarm in ledger.alarms.all()]


def check_for(ledger: Ledger, seconds: float, *alive: str) -> list[str]:
    """The alarms after so much time, in which a worker has checked every 2 minutes."""
    found = check(ledger, *alive)
    passed_s = 0.0
    while passed_s < seconds:
        let_time_pass(ledger.engine, 120.0)
        passed_s += 120.0
        found = check(ledger, *alive)
    return found


@pytest.mark.parametrize("planned_s", [20.0, 900.0, 3600.0])
def test_alarm__no_sweep_ends_in_a_living_fleet__is_on_until_one_does(
    ledger: Ledger, planned_s: float
) -> None:
    sweep(ledger, planned_s)
    due_s = max(3 * planned_s, LEAST_OVERDUE_S)
    assert check_for(ledger, due_s - 120.0, BEAT, WORKER) == []
    assert check_for(ledger, SEEN_FOR_S, BEAT, WORKER) == []
    assert check_for(ledger, 360.0, BEAT, WORKER) == [AlarmName.SWEEP_OVERDUE]
    (alarm,) = ledger.alarms.all()
    assert alarm.details["ended_ago_s"] >= due_s + SEEN_FOR_S
    sweep(ledger, planned_s)
    assert check(ledger, BEAT, WORKER) == []


def test_alarm__first_sweep_never_ends__is_on_after_an_hour(ledger: Ledger) -> None:
    assert check_for(ledger, LEAST_OVERDUE_S - 120.0, BEAT, WORKER) == []
    assert check_for(ledger, 240.0, BEAT, WORKER) == [AlarmName.SWEEP_OVERDUE]
    (alarm,) = ledger.alarms.all()
    assert alarm.details["ended_ago_s"] is None


def test_alarm__fleet_was_down_for_a_day__first_sweep_has_time(ledger: Ledger) -> None:
    sweep(ledger)
    let_time_pass(ledger.engine, 86400.0)
    assert check(ledger, BEAT, WORKER) == []
    let_time_pass(
        ledger.engine, CHECKS_APART_S + 1
    )  # it stops again, and does not count
    assert check(ledger, BEAT, WORKER) == []
    assert check_for(ledger, SEEN_FOR_S - 180.0, BEAT, WORKER) == []
    assert check_for(ledger, 240.0, BEAT, WORKER) == [AlarmName.SWEEP_OVERDUE]


def test_alarm__clock_set_back_and_no_sweep_ends__is_on_all_the_same(
    ledger: Ledger,
) -> None:
    sweep(ledger)
    let_time_pass(ledger.engine, -10 * LEAST_OVERDUE_S)
    assert check_for(ledger, SEEN_FOR_S - 180.0, BEAT, WORKER) == []
    assert check_for(ledger, 360.0, BEAT, WORKER) == [AlarmName.SWEEP_OVERDUE]


@pytest.mark.parametrize("alive", [BEAT, WORKER])
def test_alarm__beat_or_the_slurm_worker_is_away__time_does_not_count(
    ledger: Ledger, alive: str
) -> None:
    sweep(ledger)
    assert check_for(ledger, 2 * LEAST_OVERDUE_S, alive) == []
    assert check(ledger, BEAT, WORKER) == []
