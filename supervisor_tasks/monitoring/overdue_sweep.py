"""Watch the sweep. It finds what every other part has missed, so a fleet whose sweeps
fail or hang looks healthy.

The sweep is overdue when none has ended for MISSED_SWEEPS times its interval, and for
LEAST_OVERDUE_S at least. An alarm is raised when workers have seen that for SEEN_FOR_S:
after an outage of the fleet, the sweep has that time. Time in which beat or the workers
of the slurm queue are away does not count; `supervisor health` reports them.
"""

from collections.abc import Mapping

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.ledger.conditions import Condition
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.periodic_run_names import (
    BEAT,
    IDLE_S,
    RECORD_BEAT_EVERY_S,
    finished_key,
    is_in_the_future,
    since_end_s,
)
from supervisor_tasks.ledger.reconciliations import LastEnd

MISSED_SWEEPS = 3
LEAST_OVERDUE_S = 3600.0
SEEN_FOR_S = 900.0
MISSED_RUNS = 3  # a process counts as away so many intervals after its last run
CHECKS_APART_S = MISSED_RUNS * IDLE_S["check_alarms"]
# the runs of the processes that a sweep needs, with their intervals
NEEDED_RUNS_S = {
    BEAT: RECORD_BEAT_EVERY_S,
    finished_key("check_slurm"): IDLE_S["check_slurm"],
}
ADVICE = "each sweep fails, or one hangs: read the logs of the slurm queue's workers"


def overdue_after_s(planned_s: float) -> float:
    """Return how long ago the last sweep may have ended, if it planned the next one
    `planned_s` after its beginning.
    """
    return max(MISSED_SWEEPS * planned_s, LEAST_OVERDUE_S)


def update_overdue_sweep_alarm(ledger: Ledger) -> None:
    """Raise the alarm while the sweep is overdue, and end it when one has ended. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    last = ledger.reconciliations.last_end()
    seen_for_s = LEAST_OVERDUE_S if last is None else SEEN_FOR_S
    condition = Condition(
        ledger, AlarmName.SWEEP_OVERDUE, seen_for_s, gap_s=CHECKS_APART_S
    )
    if last is not None and _has_just_ended(last):
        condition.update(False)
    elif _can_sweep(ledger.periodic_runs.ages_s()):
        ended_ago_s = None if last is None else round(last.age_s)
        condition.update(True, ended_ago_s=ended_ago_s, advice=ADVICE)


def _has_just_ended(last: LastEnd) -> bool:
    """Return whether no other sweep need have ended since. An end in the future proves
    nothing: the database's clock was set back.
    """
    if is_in_the_future(last.age_s):
        return False
    return last.age_s <= overdue_after_s(last.planned_s)


def _can_sweep(periodic_run_ages_s: Mapping[str, float]) -> bool:
    """Return whether beat, which requests sweeps, and a worker that sweeps are there."""
    return all(
        since_end_s(periodic_run_ages_s, name) <= MISSED_RUNS * every_s
        for name, every_s in NEEDED_RUNS_S.items()
    )
