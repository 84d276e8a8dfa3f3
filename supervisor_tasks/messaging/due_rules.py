"""Decides from the ledger's data which tasks are due. It does no I/O.

A task is due when it has something to do (`wanted`). It is also due when its last end
is `idle_s` ago or more: its next end proves that the workers of its queue are alive.
Beat sends messages for no other task.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.ledger.due import LedgerState
from supervisor_tasks.ledger.facts import (
    CALLBACK_HEARTBEAT_MISSED,
    REWIND,
    SCAN_STALLED,
    Fact,
)
from supervisor_tasks.ledger.heartbeats import missing_sources
from supervisor_tasks.ledger.periodic_run_names import (
    IDLE_S,
    OLD_ROWS_DELETED,
    finished_key,
    since_end_s,
)
from supervisor_tasks.ledger.registrations import (
    HARDWARE,
    MEASUREMENT_REQUESTED,
    PERMISSION,
    REGISTRATION,
    REGISTRATION_RECORD,
    REGISTRATION_REQUESTED,
    REGISTRATION_STATUS,
)
from supervisor_tasks.monitoring.slurm_tries import (
    ANSWERED_SINCE_START,
    FAILED_TRIES,
    SLURM_ANSWERED,
    check_is_due,
)
from supervisor_tasks.provider.registration_rules import Action, RegistrationStatus

NIGHT_HOURS = 4
ONCE_A_NIGHT_S = 12 * 3600.0
LEAST_IDLE_GAP_S = 5.0  # between two messages for a task that has nothing to do
YOUNG_S = 30.0  # a fact of the registration that is younger counts as just changed
WATCHED_ALARMS = {
    AlarmName.EFFECT_PARKED,
    AlarmName.EFFECT_OVERDUE,
    AlarmName.HOME_UNSAFE,
    AlarmName.LDAP_REQUEST_REJECTED,
    AlarmName.LDAP_UNAVAILABLE,
    AlarmName.BENCHMARK_STALLED,
    AlarmName.CALLBACK_HEARTBEAT_MISSING,
}
REGISTRATION_FACTS: tuple[Fact[Any], ...] = (
    HARDWARE,
    REGISTRATION_STATUS,
    REGISTRATION_RECORD,
    REGISTRATION,
    PERMISSION,
)
FACTS: tuple[Fact[Any], ...] = (
    FAILED_TRIES,
    ANSWERED_SINCE_START,
    SCAN_STALLED,
    CALLBACK_HEARTBEAT_MISSED,
    REWIND,
    REGISTRATION_REQUESTED,
    MEASUREMENT_REQUESTED,
    *REGISTRATION_FACTS,
)


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """The settings that decide which tasks are due."""

    slurm_retry_interval_s: float = 10.0
    hardware_stable_s: float = 300.0
    has_directory: bool = False
    start_block: int = 0  # all our claims are in this block or later
    retention_hour: int = 1  # in which the deletion of old rows begins, UTC


@dataclass(frozen=True, slots=True)
class Rule:
    """When a task is due.

    While it is wanted, about `every_s` lie between two messages: beat asks every 0.8 s.
    While it is not, it must end once in `idle_s`. `idle_s` is None if the task's end
    proves nothing.
    """

    wanted: Callable[[LedgerState, RuleSettings], bool]
    every_s: float
    idle_s: float | None = None


def _register(state: LedgerState, settings: RuleSettings) -> bool:
    """Return whether the registration may have to change: by request, by a changed
    fact, or because it is not done.
    """
    offered_for_s = state.age_s(HARDWARE) - settings.hardware_stable_s
    reasons = (
        state.read(REGISTRATION_REQUESTED) is not None,
        state.read(MEASUREMENT_REQUESTED) is not None,
        # the hardware has just been stable for long enough to be offered
        0.0 <= offered_for_s <= YOUNG_S,
        min(map(state.age_s, REGISTRATION_FACTS)) <= YOUNG_S,
        state.measuring,
        state.unmined,
        not _is_registration_done(state),
    )
    return any(reasons)


def _is_registration_done(state: LedgerState) -> bool:
    """Return whether the provider is approved, and the last check of the registration
    found nothing to do.
    """
    if state.get(REGISTRATION_STATUS) is not RegistrationStatus.APPROVED:
        return False
    report = state.get(REGISTRATION) or {}
    return report.get("decision") == Action.NOTHING.value


def _scan(state: LedgerState, _: RuleSettings) -> bool:
    reasons = (
        state.under_way,
        state.ended_lately,
        state.unmined,
        state.get(SCAN_STALLED),
        state.read(REWIND) is not None,
        AlarmName.REORGANISED_TOO_DEEP in state.alarms,
    )
    return any(reasons)


def _check_slurm(state: LedgerState, settings: RuleSettings) -> bool:
    return check_is_due(
        state.periodic_run_ages_s.get(SLURM_ANSWERED),
        state.get(ANSWERED_SINCE_START) is True,
        state.read(FAILED_TRIES),
        settings.slurm_retry_interval_s,
    )


def _check_alarms(state: LedgerState, _: RuleSettings) -> bool:
    reasons = (
        state.failing,
        state.alarms & WATCHED_ALARMS,
        missing_sources(state.periodic_run_ages_s),
        # the task must also see that the heartbeat is back
        state.read(CALLBACK_HEARTBEAT_MISSED) is not None,
    )
    return any(reasons)


def _sweep(state: LedgerState, settings: RuleSettings) -> bool:
    """Return whether a sweep is due, or its task must still read claims from before
    this ledger's first scan.
    """
    if state.sweep:
        return True
    if state.claims_known_since is None:
        return False
    return state.claims_known_since > settings.start_block


def _retention(state: LedgerState, settings: RuleSettings) -> bool:
    """Return whether it is night, and the deletion of old rows has not come to its end
    in this night.
    """
    hours_into_the_night = (state.hour - settings.retention_hour) % 24
    if hours_into_the_night >= NIGHT_HOURS:
        return False
    return since_end_s(state.periodic_run_ages_s, OLD_ROWS_DELETED) >= ONCE_A_NIGHT_S


# The claim has no rule: indexer/new_blocks.py and open_transactions/receipts.py send it when the
# contract has something to claim.
RULES = {
    "dispatch_due_effects": Rule(
        lambda state, _: state.undispatched or state.abandoned, 1.0
    ),
    "poll_jobs": Rule(lambda state, _: state.unread, 1.0),
    "collect_receipts": Rule(lambda state, _: state.unmined, 1.0),
    "scan": Rule(_scan, 5.0, IDLE_S["scan"]),
    "accounts": Rule(lambda *_: False, 60.0, IDLE_S["accounts"]),
    "check_alarms": Rule(_check_alarms, 5.0, IDLE_S["check_alarms"]),
    "benchmark": Rule(lambda *_: False, 60.0, IDLE_S["benchmark"]),
    "check_slurm": Rule(_check_slurm, 2.0, IDLE_S["check_slurm"]),
    "sweep": Rule(_sweep, 10.0),
    "register": Rule(_register, 5.0, IDLE_S["register"]),
    "retention": Rule(_retention, 60.0),
    "refresh_inventory": Rule(lambda *_: False, 60.0, IDLE_S["refresh_inventory"]),
    "notify": Rule(lambda state, _: state.message_due, 1.0),
}
EXCLUSIVE_TASKS = (
    "accounts",
    "collect_receipts",
    "scan",
    "register",
    "sweep",
    "refresh_inventory",
    "check_slurm",
    "notify",
    "retention",
)


def due(state: LedgerState, settings: RuleSettings) -> dict[str, float]:
    """Return the tasks that are due, each with about the number of seconds between two
    messages.

    A task that a worker is running now is not due: the run takes all the work, or the
    next query finds the rest.
    """
    every_s_of_task = dict[str, float]()
    for name, rule in RULES.items():
        if name in state.busy:
            continue
        if name == "accounts" and not settings.has_directory:
            continue
        if rule.wanted(state, settings):
            every_s_of_task[name] = rule.every_s
            continue
        idle_for_s = since_end_s(state.periodic_run_ages_s, finished_key(name))
        if rule.idle_s is not None and idle_for_s >= rule.idle_s:
            every_s_of_task[name] = max(rule.every_s, LEAST_IDLE_GAP_S)
    return every_s_of_task
