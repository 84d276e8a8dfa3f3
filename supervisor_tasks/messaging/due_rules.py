"""Which tasks are due, by what the ledger says. It decides, and asks nothing.

A task has something to do (`wanted`), or it has not ended for a while (`idle_s`): that it does end then tells that the workers
of its queue are alive. Nothing else becomes a message.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from supervisor_tasks.ledger.due import Look
from supervisor_tasks.ledger.facts import CALLBACKS_MISSED, REWIND, STANDS_STILL, Fact
from supervisor_tasks.ledger.operator import AlarmName, finished_tick
from supervisor_tasks.ledger.provider import HARDWARE, MEMORY, PERMISSION, REGISTRATION, RUN_WANTED, STANDING
from supervisor_tasks.ledger.provider import WANTED as REGISTRATION_WANTED
from supervisor_tasks.ledger.tellers import away
from supervisor_tasks.monitoring.slurm_tries import ANSWERED, FAILED_TRIES, SEEN, check_is_due
from supervisor_tasks.registration import Action, Standing

YOUNG_S = 30.0  # a fact of the registration that is younger has just changed
WATCHED_ALARMS = {AlarmName.EFFECT_PARKED, AlarmName.EFFECT_LATE, AlarmName.HOME_UNSAFE, AlarmName.CALLBACKS_AWAY}
REGISTRATION_FACTS: tuple[Fact[Any], ...] = (HARDWARE, STANDING, MEMORY, REGISTRATION, PERMISSION)
FACTS: tuple[Fact[Any], ...] = (
    FAILED_TRIES,
    SEEN,
    STANDS_STILL,
    CALLBACKS_MISSED,
    REWIND,
    REGISTRATION_WANTED,
    RUN_WANTED,
    *REGISTRATION_FACTS,
)


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """What the settings say that decides what is due."""

    slurm_try_every_s: float = 10.0
    hardware_settled_s: float = 300.0
    has_directory: bool = False
    start_block: int = 0  # no claim of ours is older


@dataclass(frozen=True, slots=True)
class Rule:
    """When a task is due. `every_s` lies between two messages at least while it is wanted; it ends once in `idle_s` at least,
    None where its end tells nothing.
    """

    wanted: Callable[[Look, RuleSettings], bool]
    every_s: float
    idle_s: float | None = None


def _register(look: Look, settings: RuleSettings) -> bool:
    """Something that a registration is decided by has just changed, is about to count, or is not as it is wanted."""
    known = [stored for fact in REGISTRATION_FACTS if (stored := look.read(fact)) is not None]
    hardware = look.read(HARDWARE)
    counts_now = hardware is not None and 0.0 <= hardware.age_s - settings.hardware_settled_s <= YOUNG_S
    is_asked = look.read(REGISTRATION_WANTED) is not None or look.read(RUN_WANTED) is not None
    has_changed = any(stored.age_s <= YOUNG_S for stored in known)
    return is_asked or counts_now or has_changed or look.measuring or look.unmined or not _is_settled(look)


def _is_settled(look: Look) -> bool:
    """Whether the provider is approved, and the last look at the registration found nothing to do."""
    report = look.get(REGISTRATION) or {}
    return look.get(STANDING) is Standing.APPROVED and report.get("decision") == Action.NOTHING.value


def _scan(look: Look, _: RuleSettings) -> bool:
    too_deep = AlarmName.REORGANISED_TOO_DEEP in look.alarms
    asked = (look.get(STANDS_STILL) or "") != "" or look.read(REWIND) is not None
    return look.under_way or look.unmined or asked or too_deep


def _check_slurm(look: Look, settings: RuleSettings) -> bool:
    answered_s, seen = look.ticks_s.get(ANSWERED), look.get(SEEN) or False
    return check_is_due(answered_s, seen, look.read(FAILED_TRIES), settings.slurm_try_every_s)


def _watch(look: Look, _: RuleSettings) -> bool:
    missed = bool(away(look.ticks_s)) or look.read(CALLBACKS_MISSED) is not None  # that it is over must be seen, too
    return look.failing or not look.alarms.isdisjoint(WATCHED_ALARMS) or missed


def _sweep(look: Look, settings: RuleSettings) -> bool:
    """A sweep is due, or claims from before this ledger's first scan are to be read: the sweep's task does that in between."""
    return look.sweep or (look.claims_known_since or 0) > settings.start_block


RULES = {
    "nudge": Rule(lambda look, _: look.unwoken or look.abandoned, 1.0),
    "witness": Rule(lambda look, _: look.unread, 1.0),
    "track": Rule(lambda look, _: look.unmined, 1.0),
    "scan": Rule(_scan, 5.0, 75.0),
    "accounts": Rule(lambda look, _: look.accounts, 1.0, 300.0),
    "watch": Rule(_watch, 5.0, 120.0),
    "benchmark": Rule(lambda look, _: look.measuring, 2.0, 300.0),
    "check_slurm": Rule(_check_slurm, 2.0, 60.0),
    "sweep": Rule(_sweep, 10.0),
    "register": Rule(_register, 5.0, 300.0),
    "look_at_nodes": Rule(lambda *_: False, 60.0, 60.0),
}
GUARDED = ("witness", "track", "scan", "register", "sweep", "look_at_nodes", "check_slurm")


def due(look: Look, settings: RuleSettings) -> dict[str, float]:
    """The tasks that are due, each with how many seconds must lie between two messages for it. What a worker does at this
    moment is not due: it takes all there is, or the next question finds what is left.
    """
    found = dict[str, float]()
    for name, rule in RULES.items():
        if name in look.busy or (name == "accounts" and not settings.has_directory):
            continue
        if rule.wanted(look, settings):
            found[name] = rule.every_s
        elif rule.idle_s is not None and look.ticks_s.get(finished_tick(name), float("inf")) >= rule.idle_s:
            found[name] = max(rule.every_s, 5.0)
    return found
