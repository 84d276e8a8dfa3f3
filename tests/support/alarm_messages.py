"""Alarms whose messages a worker sends to servers of a test, and the time that passes
between.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Any

from sqlalchemy import text

from devgrid.machine import deadline
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.ledger.due import Due
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.messaging.due_rules import (
    EXCLUSIVE_TASKS,
    FACTS,
    RuleSettings,
    due,
)
from supervisor_tasks.notifications.deliver import notify
from supervisor_tasks.notifications.delivery_rules import Policy
from supervisor_tasks.notifications.forms import json_form
from supervisor_tasks.site_services.channels import Notifier, Webhook
from tests.support.ledger import through
from tests.support.receivers import WebhookReceiver

ALARM = AlarmName.WALLET_EMPTY
AT_ONCE = Policy(stable_s=0.0)
SENDER, OPS, BOSS = "fleet@example.org", "ops@example.org", "boss@example.org"


def notifier(
    *servers: WebhookReceiver,
    policy: Policy = AT_ONCE,
    hung: Collection[WebhookReceiver] = (),
    **changes: Any,
) -> Notifier:
    """A notifier with a webhook for each server. They have long to answer, but those
    that are `hung` a second.
    """
    channels = {
        f"webhook {number}": Webhook(
            server.url, json_form, timeout_s=1.0 if server in hung else deadline(10.0)
        )
        for number, server in enumerate(servers)
    }
    return Notifier(channels=channels, policy=policy, **changes)


def kinds(server: WebhookReceiver) -> list[str]:
    """What a webhook got: status and alarm of each message."""
    return [f"{body['status']} {body['alarm']}" for body in server.got]


def messages(ledger: Ledger) -> list[Any]:
    """The stored messages, with the seconds until each is due."""
    with ledger.engine.connect() as connection:
        query = "SELECT *, EXTRACT(EPOCH FROM due_at - now())::float8 AS due_in_s FROM alarm_messages ORDER BY id"
        return list(connection.execute(text(query)))


def pass_time(ledger: Ledger, seconds: float) -> None:
    """Move all times of incidents and messages into the past."""
    times = {
        "alarm_incidents": ("raised_at", "cleared_at", "closed_at", "due_at"),
        "alarm_messages": (
            "created_at",
            "due_at",
            "failing_since",
            "sent_at",
            "done_at",
            "parked_at",
        ),
        "alarm_silences": ("begun_at", "ends_at"),
    }
    with ledger.engine.begin() as connection:
        for table, columns in times.items():
            moved = ", ".join(
                f"{column} = {column} - :s * interval '1 second'" for column in columns
            )
            connection.execute(text(f"UPDATE {table} SET {moved}"), {"s": seconds})  # noqa: S608


def is_due(ledger: Ledger) -> bool:
    """Whether beat would send the task."""
    return "notify" in due(
        Due(through(ledger.engine), "here", EXCLUSIVE_TASKS, FACTS).ask(),
        RuleSettings(),
    )


def work_as_beat_asks(ledger: Ledger, notifier: Notifier) -> None:
    """What a worker does for the messages that beat sends it."""
    while is_due(ledger):
        notify(ledger, notifier)


@contextmanager
def worker(ledger: Ledger, wanted: Notifier) -> Iterator[None]:
    """A worker that notifies whenever beat would ask it to."""
    ended = Event()

    def work() -> None:
        while not ended.wait(0.05):
            if is_due(ledger):
                notify(ledger, wanted)

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def in_a_while(**units: float) -> datetime:
    """The time after so much time, in units of timedelta."""
    return datetime.now(UTC) + timedelta(**units)
