"""Which tasks beat sends: what has something to do, and what has not ended for a
while; an idle hour stays quiet.
"""

import ast
from typing import Any

import pytest

from devgrid import REPOSITORY
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.ledger.due import LedgerState
from supervisor_tasks.ledger.facts import (
    CALLBACK_HEARTBEAT_MISSED,
    SCAN_STALLED,
    Fact,
    Stored,
)
from supervisor_tasks.ledger.periodic_run_names import OLD_ROWS_DELETED, finished_key
from supervisor_tasks.ledger.registrations import (
    HARDWARE,
    REGISTRATION,
    REGISTRATION_REQUESTED,
    REGISTRATION_STATUS,
)
from supervisor_tasks.messaging.due_rules import (
    EXCLUSIVE_TASKS,
    RULES,
    RuleSettings,
    due,
)
from supervisor_tasks.monitoring.slurm_tries import (
    ANSWERED_SINCE_START,
    CHECK_EVERY_S,
    KNOWN_FOR_S,
    SLURM_ANSWERED,
)
from supervisor_tasks.provider.registration_rules import RegistrationStatus
from supervisor_tasks.reconciliation.contract_claims import SCANNED_WITHIN_S
from tests.support.reference.source import modules

SETTINGS = RuleSettings()
SITE_WITH_DIRECTORY = RuleSettings(has_directory=True)
OLD_S = 10_000.0


def stored(
    fact: Fact[Any], value: object, age_s: float = OLD_S
) -> dict[str, Stored[str]]:
    return {fact.name: Stored(fact.codec.encode(value), age_s)}


REGISTERED = {
    **stored(REGISTRATION_STATUS, RegistrationStatus.APPROVED),
    **stored(HARDWARE, ()),
    **stored(REGISTRATION, {"decision": "nothing"}),
    **stored(ANSWERED_SINCE_START, True),
}
RECENT = {finished_key(name): 1.0 for name in RULES} | {
    SLURM_ANSWERED: 1.0,
    "callbacks": 1.0,
}


def idle(**changes: object) -> LedgerState:
    state = {"periodic_run_ages_s": RECENT, "facts": REGISTERED} | changes
    return LedgerState(**state)  # type: ignore[arg-type]


def aged(name: str, age_s: float) -> dict[str, float]:
    return RECENT | {name: age_s}


def test_due__nothing_happens__nothing() -> None:
    assert due(idle(), SETTINGS) == {}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"undispatched": True}, {"dispatch_due_effects"}),
        ({"abandoned": True}, {"dispatch_due_effects"}),
        ({"unread": True}, {"poll_jobs"}),
        ({"message_due": True}, {"notify"}),
        ({"unmined": True}, {"collect_receipts", "scan", "register"}),
        ({"under_way": True}, {"scan"}),
        ({"failing": True}, {"check_alarms"}),
        ({"ended_lately": True}, {"scan"}),  # the chain may lose the block of its end
        ({"alarms": frozenset({AlarmName.EFFECT_PARKED})}, {"check_alarms"}),
        ({"alarms": frozenset({AlarmName.REORGANISED_TOO_DEEP})}, {"scan"}),
        ({"periodic_run_ages_s": aged("callbacks", 31.0)}, {"check_alarms"}),
        ({"measuring": True}, {"register"}),
        ({"sweep": True}, {"sweep"}),
        ({"claims_known_since": 1}, {"sweep"}),  # older claims must be read
        ({"claims_known_since": 0}, set()),
        ({"periodic_run_ages_s": aged(SLURM_ANSWERED, CHECK_EVERY_S)}, {"check_slurm"}),
        ({"facts": REGISTERED | stored(SCAN_STALLED, "17")}, {"scan"}),
        ({"facts": REGISTERED | stored(SCAN_STALLED, "")}, set()),
        (
            {"facts": REGISTERED | stored(CALLBACK_HEARTBEAT_MISSED, "")},
            {"check_alarms"},
        ),
        (
            {"facts": REGISTERED | stored(REGISTRATION_REQUESTED, "the operator")},
            {"register"},
        ),
        (
            {
                "facts": REGISTERED
                | stored(REGISTRATION_STATUS, RegistrationStatus.WAITING)
            },
            {"register"},
        ),
        (
            {"facts": REGISTERED | stored(REGISTRATION, {"decision": "register"})},
            {"register"},
        ),
        ({"facts": REGISTERED | stored(HARDWARE, (), 1.0)}, {"register"}),
        ({"facts": REGISTERED | stored(HARDWARE, (), 299.0)}, set()),
        ({"facts": REGISTERED | stored(HARDWARE, (), 301.0)}, {"register"}),
        ({"hour": 0}, set()),
        ({"hour": 1}, {"retention"}),
        ({"hour": 4}, {"retention"}),
        ({"hour": 5}, set()),
        (
            {"hour": 1, "periodic_run_ages_s": aged(OLD_ROWS_DELETED, 11 * 3600.0)},
            set(),
        ),
        (
            {"hour": 1, "periodic_run_ages_s": aged(OLD_ROWS_DELETED, 13 * 3600.0)},
            {"retention"},
        ),
        ({"hour": 1, "busy": frozenset({"retention"})}, set()),
    ],
)
def test_due__something_is_due__its_task(
    changes: dict[str, object], expected: set[str]
) -> None:
    assert due(idle(**changes), SETTINGS).keys() == expected


def test_due__slurm_does_not_answer__is_asked_as_the_tries_say() -> None:
    without = {name: age_s for name, age_s in RECENT.items() if name != SLURM_ANSWERED}
    assert due(idle(periodic_run_ages_s=without), SETTINGS).keys() == {"check_slurm"}


def test_due__clock_of_the_database_set_back_by_an_hour__as_with_a_new_ledger() -> None:
    in_the_future = dict.fromkeys(RECENT, -3600.0)
    for changes in ({}, {"hour": SETTINGS.retention_hour}):
        after_the_step = due(
            idle(periodic_run_ages_s=in_the_future, **changes), SETTINGS
        )
        nothing_ended = due(idle(periodic_run_ages_s={}, **changes), SETTINGS)
        assert after_the_step == nothing_ended
        assert {"scan", "check_alarms", "check_slurm"} <= after_the_step.keys()


def test_due__old_rows_deleted_in_the_future__deletes_again() -> None:
    ages_s = aged(OLD_ROWS_DELETED, -3600.0)
    night = idle(periodic_run_ages_s=ages_s, hour=SETTINGS.retention_hour)
    assert due(night, SETTINGS).keys() == {"retention"}


def test_due__a_worker_is_at_it__not_once_more() -> None:
    assert due(idle(unmined=True, busy=frozenset(EXCLUSIVE_TASKS)), SETTINGS) == {}


def exclusive_work() -> set[str]:
    """The names of the work that one process does at a time, as the source gives
    them.
    """
    return {
        str(argument.value)
        for _, module in modules(REPOSITORY)
        for call in ast.walk(module)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in ("exclusive", "run_exclusive")
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }


def test_exclusive_tasks__tasks_with_a_rule_that_run_alone__are_all_there() -> None:
    assert set(EXCLUSIVE_TASKS) == exclusive_work() & RULES.keys()


def test_due__customers_not_read_for_long__only_where_there_is_a_directory() -> None:
    without = {
        name: age_s
        for name, age_s in RECENT.items()
        if name != finished_key("accounts")
    }
    assert due(idle(periodic_run_ages_s=without), SETTINGS) == {}
    assert due(idle(periodic_run_ages_s=without), SITE_WITH_DIRECTORY).keys() == {
        "accounts"
    }


def test_due__new_ledger__everything_that_ends_again_and_again() -> None:
    beginning = due(LedgerState(sweep=True), SETTINGS).keys()
    assert beginning == {
        name
        for name, rule in RULES.items()
        if rule.idle_s is not None and name != "accounts"
    } | {"sweep"}


@pytest.mark.parametrize("sweep_every_s", [900.0, 90.0])
@pytest.mark.parametrize("settings", [SETTINGS, SITE_WITH_DIRECTORY])
def test_due__idle_hour__three_hundred_tasks_at_most(
    sweep_every_s: float, settings: RuleSettings
) -> None:
    """Second by second, with tasks that end at once; 90 s lie between two sweeps where
    there is no accounting.
    """
    periodic_run_ages_s = dict(RECENT)
    since_sweep_s, sent = 0.0, 0
    for _ in range(3600):
        found = due(
            idle(
                periodic_run_ages_s=periodic_run_ages_s,
                sweep=since_sweep_s >= sweep_every_s,
            ),
            settings,
        )
        sent += len(found)
        since_sweep_s = 0.0 if "sweep" in found else since_sweep_s + 1
        ended = {finished_key(name): 0.0 for name in found} | (
            {SLURM_ANSWERED: 0.0} if "check_slurm" in found else {}
        )
        periodic_run_ages_s = (
            {name: age_s + 1 for name, age_s in periodic_run_ages_s.items()}
            | ended
            | {"callbacks": 1.0}
        )
    assert 200 < sent <= 300


def test_heartbeats__their_intervals__are_shorter_than_the_age_that_counts_as_old() -> (
    None
):
    assert 2 * CHECK_EVERY_S < KNOWN_FOR_S
    scan_every_s = RULES["scan"].idle_s
    assert scan_every_s is not None
    assert scan_every_s < SCANNED_WITHIN_S


@pytest.mark.parametrize(
    ("hour", "is_due"),
    [(21, False), (22, True), (23, True), (0, True), (1, True), (2, False)],
)
def test_due__night_begins_before_midnight__ends_after_it(
    hour: int, is_due: bool
) -> None:
    assert (
        "retention" in due(idle(hour=hour), RuleSettings(retention_hour=22))
    ) is is_due
