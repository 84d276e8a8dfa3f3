"""Decides from the ledger's data which tasks are due. It does no I/O.

A task is due when it has something to do (`wanted`). It is also due when its last end
is `idle_s` ago or more: its next end proves that the workers of its queue are alive.
Beat sends messages for no other task.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.due import Look
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

    While it is wanted, at least `every_s` lie between two messages. While it is not, it
    must end once in `idle_s`. `idle_s` is None if the task's end proves nothing.
    """

    wanted: Callable[[Look, RuleSettings], bool]
    every_s: float
    idle_s: float | None = None


def _register(look: Look, settings: RuleSettings) -> bool:
    """Return whether the registration may have to change: by request, by a changed
    fact, or because it is not settled.
    """
    offered_for_s = look.age_s(HARDWARE) - settings.hardware_stable_s
    reasons = (
        look.read(REGISTRATION_REQUESTED) is not None,
        look.read(MEASUREMENT_REQUESTED) is not None,
        # the hardware has just been stable for long enough to be offered
        0.0 <= offered_for_s <= YOUNG_S,
        min(map(look.age_s, REGISTRATION_FACTS)) <= YOUNG_S,
        look.measuring,
        look.unmined,
        not _is_settled(look),
    )
    return any(reasons)


def _is_settled(look: Look) -> bool:
    """Return whether the provider is approved, and the last check of the registration
    found nothing to do.
    """
    if look.get(REGISTRATION_STATUS) is not RegistrationStatus.APPROVED:
        return False
    report = look.get(REGISTRATION) or {}
    return report.get("decision") == Action.NOTHING.value


def _scan(look: Look, _: RuleSettings) -> bool:
    reasons = (
        look.under_way,
        look.ended_lately,
        look.unmined,
        look.get(SCAN_STALLED),
        look.read(REWIND) is not None,
        AlarmName.REORGANISED_TOO_DEEP in look.alarms,
    )
    return any(reasons)


def _check_slurm(look: Look, settings: RuleSettings) -> bool:
    return check_is_due(
        look.ticks_s.get(SLURM_ANSWERED),
        look.get(ANSWERED_SINCE_START) is True,
        look.read(FAILED_TRIES),
        settings.slurm_retry_interval_s,
    )


def _check_alarms(look: Look, _: RuleSettings) -> bool:
    reasons = (
        look.failing,
        look.alarms & WATCHED_ALARMS,
        missing_sources(look.ticks_s),
        # the task must also see that the heartbeat is back
        look.read(CALLBACK_HEARTBEAT_MISSED) is not None,
    )
    return any(reasons)


def _sweep(look: Look, settings: RuleSettings) -> bool:
    """Return whether a sweep is due, or its task must still read claims from before
    this ledger's first scan.
    """
    if look.sweep:
        return True
    if look.claims_known_since is None:
        return False
    return look.claims_known_since > settings.start_block


def _retention(look: Look, settings: RuleSettings) -> bool:
    """Return whether it is night, and the deletion of old rows has not come to its end
    in this night.
    """
    hours_into_the_night = (look.hour - settings.retention_hour) % 24
    if hours_into_the_night >= NIGHT_HOURS:
        return False
    return look.ticks_s.get(OLD_ROWS_DELETED, float("inf")) >= ONCE_A_NIGHT_S


RULES = {
    "dispatch_due_effects": Rule(
        lambda look, _: look.undispatched or look.abandoned, 1.0
    ),
    "poll_jobs": Rule(lambda look, _: look.unread, 1.0),
    "collect_receipts": Rule(lambda look, _: look.unmined, 1.0),
    "scan": Rule(_scan, 5.0, IDLE_S["scan"]),
    "accounts": Rule(lambda *_: False, 60.0, IDLE_S["accounts"]),
    "check_alarms": Rule(_check_alarms, 5.0, IDLE_S["check_alarms"]),
    "benchmark": Rule(lambda *_: False, 60.0, IDLE_S["benchmark"]),
    "check_slurm": Rule(_check_slurm, 2.0, IDLE_S["check_slurm"]),
    "sweep": Rule(_sweep, 10.0),
    "register": Rule(_register, 5.0, IDLE_S["register"]),
    "retention": Rule(_retention, 60.0),
    "refresh_inventory": Rule(lambda *_: False, 60.0, IDLE_S["refresh_inventory"]),
    "notify": Rule(lambda look, _: look.message_due, 1.0),
}
GUARDED = (
    "collect_receipts",
    "scan",
    "register",
    "sweep",
    "refresh_inventory",
    "check_slurm",
    "notify",
    "retention",
)


def due(look: Look, settings: RuleSettings) -> dict[str, float]:
    """Return the tasks that are due, each with the least number of seconds between two
    messages.

    A task that a worker is running now is not due: the run takes all the work, or the
    next query finds the rest.
    """
    every_s_of_task = dict[str, float]()
    for name, rule in RULES.items():
        if name in look.busy:
            continue
        if name == "accounts" and not settings.has_directory:
            continue
        if rule.wanted(look, settings):
            every_s_of_task[name] = rule.every_s
            continue
        since_end_s = look.ticks_s.get(finished_key(name), float("inf"))
        if rule.idle_s is not None and since_end_s >= rule.idle_s:
            every_s_of_task[name] = max(rule.every_s, LEAST_IDLE_GAP_S)
    return every_s_of_task
