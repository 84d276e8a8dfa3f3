"""Messages about alarms, on a real Postgres and with real HTTP and SMTP servers that
are away, fail, hang, or see the worker die.
"""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import psutil
import pytest
import structlog
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import wait_until
from devgrid.tls import Certificates
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import load
from supervisor_tasks.from_settings.notification_channels import notifier_of
from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.due import Due
from supervisor_tasks.ledger.figures import read_figures
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.messaging.due_rules import EXCLUSIVE, FACTS, RuleSettings, due
from supervisor_tasks.notifications.deliver import FIRST_WAIT_S, notify
from supervisor_tasks.notifications.delivery_rules import Policy, plan
from supervisor_tasks.notifications.forms import json_form
from supervisor_tasks.site_services.channels import (
    Command,
    Mail,
    Notifier,
    SmtpSecurity,
    Webhook,
)
from tests.support.commands import Result, supervisor
from tests.support.ledger import through
from tests.support.receivers import (
    HANGS,
    MailReceiver,
    WebhookReceiver,
    mail_receiver,
    webhook_receiver,
)

ALARM = AlarmName.WALLET_EMPTY
TOKEN = "T0K3N-of-the-chat-4711"
AT_ONCE = Policy(stable_s=0.0)
SENDER, OPS, BOSS = "fleet@example.org", "ops@example.org", "boss@example.org"


@pytest.fixture
def webhook() -> Iterator[WebhookReceiver]:
    with webhook_receiver() as server:
        yield server


def notifier(
    *servers: WebhookReceiver, policy: Policy = AT_ONCE, **changes: Any
) -> Notifier:
    """A notifier with a webhook for each server, which have one second to answer, and
    more on a slow machine.
    """
    channels = {
        f"webhook {number}": Webhook(server.url, json_form, timeout_s=deadline(1.0))
        for number, server in enumerate(servers)
    }
    return Notifier(channels=channels, policy=policy, **changes)


def kinds(server: WebhookReceiver) -> list[str]:
    return [f"{body['status']} {body['alarm']}" for body in server.got]


def messages(ledger: Ledger) -> list[Any]:
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
        Due(through(ledger.engine), "here", EXCLUSIVE, FACTS).ask(), RuleSettings()
    )


def work_as_beat_asks(ledger: Ledger, notifier: Notifier) -> None:
    """What a worker does for the messages that beat sends it."""
    while is_due(ledger):
        notify(ledger, notifier)


# --- what happens to an alarm, and what is told ---------------------------------------


def test_notify__an_alarm_goes_on_and_off__both_are_told_once(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    assert not is_due(ledger)
    ledger.alarms.on(ALARM, balance_wei=12)
    ledger.alarms.on(ALARM, balance_wei=11)
    assert is_due(ledger)
    notify(ledger, notifier(webhook))
    assert not is_due(ledger)
    notify(ledger, notifier(webhook))
    assert kinds(webhook) == ["firing wallet_empty"]
    assert webhook.got[0]["details"] == {"balance_wei": 12}
    ledger.alarms.off(ALARM)
    assert is_due(ledger)
    notify(ledger, notifier(webhook))
    notify(ledger, notifier(webhook))
    assert kinds(webhook) == ["firing wallet_empty", "resolved wallet_empty"]
    assert len({body["incident"] for body in webhook.got}) == 1
    assert [headers["Idempotency-Key"] for _, headers in webhook.requests] == [
        body["id"] for body in webhook.got
    ]
    assert not is_due(ledger)


def test_notify__an_alarm_flaps__is_one_message_and_one_resolution(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    settling = notifier(webhook, policy=Policy(stable_s=300.0))
    for _ in range(3):
        ledger.alarms.on(ALARM)
        notify(ledger, settling)
        ledger.alarms.off(ALARM)
        notify(ledger, settling)
        pass_time(ledger, 100)
    assert kinds(webhook) == ["firing wallet_empty"]
    assert not is_due(ledger)
    pass_time(ledger, 201)
    assert is_due(ledger)
    notify(ledger, settling)
    assert kinds(webhook) == ["firing wallet_empty", "resolved wallet_empty"]
    assert webhook.got[1]["raises"] == 3
    ledger.alarms.on(ALARM)
    notify(ledger, settling)
    assert len({body["incident"] for body in webhook.got}) == 2


def test_notify__came_and_went_before_a_worker_looked__both_are_told(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    ledger.alarms.on(ALARM)
    ledger.alarms.off(ALARM)
    notify(ledger, notifier(webhook))
    assert kinds(webhook) == ["firing wallet_empty", "resolved wallet_empty"]


def test_alarm__its_incident_cannot_be_written__is_not_on_either(
    ledger: Ledger,
) -> None:
    with ledger.engine.begin() as connection:
        connection.execute(
            text(
                "ALTER TABLE alarm_incidents ADD CONSTRAINT none CHECK (alarm = '') NOT VALID"
            )
        )
    try:
        with pytest.raises(IntegrityError):
            ledger.alarms.on(ALARM)
        assert ledger.alarms.all() == []
    finally:
        with ledger.engine.begin() as connection:
            connection.execute(text("ALTER TABLE alarm_incidents DROP CONSTRAINT none"))


def test_notify__two_channels__a_later_one_is_told_of_what_is_still_on(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    ledger.alarms.on(ALARM)
    notify(ledger, notifier())
    assert messages(ledger) == []
    ledger.incidents.make_all_due()  # a worker starts, with a channel
    notify(ledger, notifier(webhook))
    assert kinds(webhook) == ["firing wallet_empty"]


def test_notify__another_clusters_alarm__is_not_told(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    Ledger(ledger.engine, "there", lambda _: None).alarms.on(ALARM)
    notify(ledger, notifier(webhook))
    assert webhook.got == []


def test_notify__two_workers_at_once__one_sends(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    ledger.alarms.on(ALARM)
    barrier = Barrier(4)

    def work() -> None:
        barrier.wait()
        notify(ledger, notifier(webhook))

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kinds(webhook) == ["firing wallet_empty"]


# --- a server that does not take it ---------------------------------------------------


def test_notify__server_is_away_for_a_while__gets_all_in_their_order_when_it_is_back(
    ledger: Ledger,
) -> None:
    port = free_port()
    with webhook_receiver(port) as server:
        away = notifier(server)
    ledger.alarms.on(ALARM)
    notify(ledger, away)
    ledger.alarms.off(ALARM)
    notify(ledger, away)
    raised, resolved = messages(ledger)
    assert (raised.attempts, raised.sent_at, resolved.attempts) == (1, None, 0)
    assert "refused" in raised.last_error.lower()
    assert not is_due(ledger)  # the resolution follows what was told only
    pass_time(ledger, 10)
    assert is_due(ledger)
    with webhook_receiver(port) as back:
        notify(ledger, away)
        assert kinds(back) == ["firing wallet_empty", "resolved wallet_empty"]
    assert all(
        message.done_at and not message.failing_since for message in messages(ledger)
    )


def test_notify__server_answers_500__is_tried_with_growing_delay(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    webhook.statuses = [500] * 12
    patient, waits = notifier(webhook, late_after_s=1e9), []
    ledger.alarms.on(ALARM)
    for number in range(12):
        begun_s = time.monotonic()
        notify(ledger, patient)
        (message,) = messages(ledger)
        waits.append((message.due_in_s, time.monotonic() - begun_s))
        notify(ledger, patient)  # not due: no further try
        (message,) = messages(ledger)
        assert message.attempts == number + 1
        pass_time(ledger, message.due_in_s + 1)
    expected = [min(5.0 * 2**number, 900.0) for number in range(12)]
    assert [
        0.7 * wait - passed_s <= found_s <= 1.2 * wait
        for (found_s, passed_s), wait in zip(waits, expected, strict=True)
    ] == [True] * 12, waits
    notify(ledger, patient)
    assert len({body["id"] for body in webhook.got}) == 1
    assert messages(ledger)[0].sent_at is not None


def test_notify__server_hangs__is_left_in_time_and_the_others_are_told(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    webhook.statuses = [HANGS] * 5
    ledger.alarms.on(ALARM)
    ledger.alarms.on(AlarmName.CLAIMS_FULL)
    with webhook_receiver() as other:
        began_s = time.monotonic()
        notify(ledger, notifier(webhook, other))
        # one time-out, not one for each message
        assert time.monotonic() - began_s < deadline(8.0)
        assert sorted(kinds(other)) == ["firing claims_full", "firing wallet_empty"]
    assert len(webhook.got) == 1


def test_notify__server_asks_for_patience__is_left_alone_so_long(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    webhook.statuses, webhook.headers = [429], {"Retry-After": "120"}
    ledger.alarms.on(ALARM)
    notify(ledger, notifier(webhook))
    assert 110 < messages(ledger)[0].due_in_s <= 120


def test_notify__redirect__is_not_followed(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    with webhook_receiver() as elsewhere:
        webhook.statuses, webhook.headers = [307], {"Location": elsewhere.url}
        ledger.alarms.on(ALARM)
        notify(ledger, notifier(webhook))
        assert elsewhere.got == []
    assert messages(ledger)[0].attempts == 1


def test_notify__one_message_is_always_rejected__delays_no_other(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    webhook.statuses = [400]
    ledger.alarms.on(ALARM)
    notify(ledger, notifier(webhook))
    ledger.alarms.on(AlarmName.CLAIMS_FULL)
    pass_time(ledger, 10)
    webhook.statuses = [200, 400]
    notify(ledger, notifier(webhook))
    assert kinds(webhook) == [
        "firing wallet_empty",
        "firing claims_full",
        "firing wallet_empty",
    ]
    assert [message.sent_at is not None for message in messages(ledger)] == [
        False,
        True,
    ]


WORKER = """
import sys
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.embedded_servers import database_url
from supervisor_tasks.config.settings import load
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.notifications.deliver import notify
from supervisor_tasks.from_settings.notification_channels import notifier_of
settings = load(Need.NOTIFY)
notify(Ledger(open_engine(database_url(settings)), settings.cluster_name, lambda _: None), notifier_of(settings))
"""


def die_at(server: WebhookReceiver | MailReceiver, environment: dict[str, str]) -> None:
    """Run a worker that is killed after the server has got its message, and before it
    can record that.
    """
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER], cwd=REPOSITORY, env=environment
    )
    server.on_message = lambda: os.kill(worker.pid, signal.SIGKILL)
    assert worker.wait(deadline(60)) == -signal.SIGKILL
    server.on_message = lambda: None


def test_notify__worker_is_killed_between_sending_and_recording__same_key_twice(
    ledger: Ledger,
    webhook: WebhookReceiver,
    migrated_ledger: tuple[Engine, dict[str, str]],
) -> None:
    ledger.alarms.on(ALARM)
    environment = migrated_ledger[1] | {
        "NOTIFY_WEBHOOK_URL": webhook.url,
        "NOTIFY_STABLE_S": "0",
    }
    die_at(webhook, environment)
    assert messages(ledger)[0].sent_at is None
    settings = load(Need.NOTIFY, environment=environment)
    wait_for_lock(ledger)
    notify(ledger, notifier_of(settings))
    first, second = webhook.got
    assert first["id"] == second["id"]
    assert first == second
    notify(ledger, notifier_of(settings))
    assert len(webhook.got) == 2


def test_notify__worker_is_killed_after_a_mail__same_message_id_twice(
    ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    ledger.alarms.on(ALARM)
    handler = MailReceiver()
    with mail_receiver(handler) as address:
        mail = {
            "NOTIFY_MAIL_TO": OPS,
            "NOTIFY_MAIL_FROM": SENDER,
            "NOTIFY_SMTP_ADDRESS": address,
        }
        environment = migrated_ledger[1] | mail | {"NOTIFY_SMTP_TLS": "none"}
        die_at(handler, environment)
        wait_for_lock(ledger)
        notify(ledger, notifier_of(load(Need.NOTIFY, environment=environment)))
    assert len(handler.mails) == 2
    assert len({mail["Message-ID"] for mail in handler.mails}) == 1


def wait_for_lock(ledger: Ledger) -> None:
    """Wait until Postgres has seen that the killed worker is gone."""
    theirs = """
        SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory'
            AND datname = current_database() AND application_name <> current_setting('application_name')
    """

    def is_free() -> bool:
        with ledger.engine.connect() as connection:
            return not connection.scalar(text(theirs))

    wait_until(is_free, "the killed worker's lock to be free", 30.0, 0.05)


# --- a channel that fails for long ----------------------------------------------------


def test_notify__channel_fails_for_long__the_others_tell_of_it_and_of_its_end(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    webhook.statuses = [500] * 3
    ledger.alarms.on(ALARM)
    with webhook_receiver() as other:
        both = notifier(webhook, other)
        notify(ledger, both)
        pass_time(ledger, 301)
        notify(ledger, both)
        notify(ledger, both)
        assert kinds(other) == ["firing wallet_empty", "firing notifications_failing"]
        details = other.got[1]["details"]
        assert (details["channels"], details["messages"], details["parked"]) == (
            ["webhook 0"],
            1,
            0,
        )
        assert "HTTP status 500" in details["last_error"]
        webhook.statuses = []
        pass_time(ledger, 60)
        notify(ledger, both)
        notify(ledger, both)
        assert kinds(other)[2:] == ["resolved notifications_failing"]
    assert sorted(kinds(webhook)[3:]) == [
        "firing notifications_failing",
        "firing wallet_empty",
        "resolved notifications_failing",
    ]


def test_notify__channel_fails_for_a_day__the_end_is_visible_and_a_test_begins_again(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    webhook.statuses = [404] * 3
    ledger.alarms.on(ALARM)
    notify(ledger, notifier(webhook))
    pass_time(ledger, 86_401)
    notify(ledger, notifier(webhook))
    (alarm,) = [
        alarm
        for alarm in ledger.alarms.all()
        if alarm.name == AlarmName.NOTIFICATIONS_FAILING
    ]
    assert alarm.details["parked"] == 1
    assert messages(ledger)[0].parked_at is not None
    pass_time(ledger, 10_000)
    webhook.statuses = []
    notify(ledger, notifier(webhook))
    # the parked one is not tried
    assert kinds(webhook)[2:] == ["firing notifications_failing"]
    ledger.incidents.ask_test()
    notify(ledger, notifier(webhook))
    assert kinds(webhook)[3:] == [
        "test test",
        "firing wallet_empty",
        "resolved notifications_failing",
    ]
    assert AlarmName.NOTIFICATIONS_FAILING not in [
        alarm.name for alarm in ledger.alarms.all()
    ]


@pytest.mark.parametrize("is_parked", [False, True], ids=["failing", "parked"])
def test_notify__one_message_fails_for_long__a_hiccup_costs_the_others_seconds(
    ledger: Ledger, webhook: WebhookReceiver, is_parked: bool
) -> None:
    webhook.statuses = [400]
    ledger.alarms.on(ALARM)
    notify(ledger, notifier(webhook))
    with ledger.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE alarm_messages SET attempts = 90, failing_since = now() - interval '20 hours',"
                " due_at = now() + interval '10 minutes', parked_at = CASE WHEN :is_parked THEN now() END"
            ),
            {"is_parked": is_parked},
        )
    ledger.alarms.on(AlarmName.WRONG_CHAIN)
    notify(ledger, notifier(webhook))  # the channel takes this one
    webhook.statuses = [503]
    ledger.alarms.on(AlarmName.CHAIN_NOT_ANSWERING)
    notify(ledger, notifier(webhook))
    (last,) = [each for each in messages(ledger) if each.attempts == 1]
    assert last.due_in_s <= 1.2 * FIRST_WAIT_S


def test_notify__channel_takes_nothing_for_long__is_asked_ever_more_rarely(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    webhook.statuses = [503] * 100
    ledger.alarms.on(ALARM)
    for _ in range(20):  # one message is tried each time
        notify(ledger, notifier(webhook))
        pass_time(ledger, 1_000)
    assert max(each.attempts for each in messages(ledger)) > 7
    ledger.alarms.on(AlarmName.WRONG_CHAIN)
    notify(ledger, notifier(webhook))
    last = messages(ledger)[-1]
    assert last.attempts == 1
    assert last.due_in_s > 100 * FIRST_WAIT_S


def test_drop_parked__message_of_an_alarm__is_given_up_with_its_resolution(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    webhook.statuses = [404, 404]
    ledger.alarms.on(ALARM)
    notify(ledger, notifier(webhook))
    pass_time(ledger, 86_401)
    notify(ledger, notifier(webhook))
    webhook.statuses = []
    assert ledger.incidents.drop_parked() == 1
    ledger.alarms.off(ALARM)
    notify(ledger, notifier(webhook))
    notify(ledger, notifier(webhook))
    assert kinds(webhook)[2:] == [
        "firing notifications_failing",
        "resolved notifications_failing",
    ]
    assert all(message.done_at for message in messages(ledger))
    assert not is_due(ledger)


def test_notify__channel_that_no_worker_has_any_more__is_late_like_one_that_fails(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    webhook.statuses = [500]
    ledger.alarms.on(ALARM)
    notify(ledger, notifier(webhook))
    pass_time(ledger, 301)
    notify(ledger, notifier())
    assert "no setting NOTIFY_*" in messages(ledger)[0].last_error
    assert [alarm.name for alarm in ledger.alarms.all()] == [
        ALARM,
        AlarmName.NOTIFICATIONS_FAILING,
    ]


# --- each kind of channel -------------------------------------------------------------


def test_mail__server_with_tls_and_login__takes_it(
    ledger: Ledger, certificates: Certificates
) -> None:
    handler = MailReceiver()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    ledger.alarms.on(ALARM, balance_wei=12)
    with mail_receiver(handler, tls=context, with_login=True) as address:
        mail = Mail(
            address,
            SmtpSecurity.STARTTLS,
            SENDER,
            OPS,
            "fleet",
            "correct-horse",
            certificates.ca,
            5.0,
        )
        notify(ledger, Notifier({"mail": mail}, AT_ONCE))
    (got,) = handler.mails
    assert (got["Subject"], got["To"]) == ("[here] CRITICAL: wallet_empty", OPS)
    assert "balance_wei: 12" in got.get_payload()
    assert "Do: Pay into the wallet's address" in got.get_payload()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"password": "wrong-password"}, "SMTPAuthenticationError"),
        ({"ca": None}, "SSLCertVerificationError"),
        ({"tls": SmtpSecurity.NONE}, "SMTP"),
    ],
)
def test_mail__wrong_password_or_authority_or_no_tls__error_omits_the_password(
    ledger: Ledger, certificates: Certificates, changes: dict[str, Any], error: str
) -> None:
    handler = MailReceiver()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    ledger.alarms.on(ALARM)
    with mail_receiver(handler, tls=context, with_login=True) as address:
        mail = Mail(
            address,
            SmtpSecurity.STARTTLS,
            SENDER,
            OPS,
            "fleet",
            "correct-horse",
            certificates.ca,
            5.0,
        )
        notify(ledger, Notifier({"mail": replace(mail, **changes)}, AT_ONCE))
    assert handler.mails == []
    (message,) = messages(ledger)
    assert error in message.last_error
    assert "password" not in message.last_error
    assert "correct-horse" not in message.last_error


def test_mail__one_receiver_is_refused__the_other_gets_one_mail(
    ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    handler = MailReceiver()
    handler.refused = {BOSS}
    ledger.alarms.on(ALARM)
    with mail_receiver(handler) as address:
        mail = {
            "NOTIFY_MAIL_TO": f"{OPS}, {BOSS}",
            "NOTIFY_MAIL_FROM": SENDER,
            "NOTIFY_SMTP_ADDRESS": address,
        }
        wanted = notifier_of(
            load(
                Need.NOTIFY,
                environment=migrated_ledger[1] | mail | {"NOTIFY_SMTP_TLS": "none"},
            )
        )
        for _ in range(3):
            notify(ledger, wanted)
            pass_time(ledger, 60)
    assert [mail["To"] for mail in handler.mails] == [OPS]
    refused = next(
        message for message in messages(ledger) if message.channel == f"mail {BOSS}"
    )
    assert (refused.attempts, "no such user" in refused.last_error) == (3, True)


@contextmanager
def talkative_server(tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """An SMTP server whose greeting never ends: a line of it comes every 0.05 s."""
    ended = Event()

    def talk(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection: socket.socket
                connection, _ = listening.accept()
                if tls is not None:
                    connection = tls.wrap_socket(connection, server_side=True)
                with connection, suppress(OSError):
                    while not ended.wait(0.05):
                        connection.sendall(b"220-wait\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=talk, args=(listening,))
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def at_once(certificates: Certificates) -> ssl.SSLContext:
    """Of a server that speaks TLS from the beginning."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    return context


def test_mail__server_with_tls_from_the_beginning__takes_it(
    ledger: Ledger, certificates: Certificates, at_once: ssl.SSLContext
) -> None:
    handler = MailReceiver()
    ledger.alarms.on(ALARM)
    with mail_receiver(handler, tls_at_once=at_once) as address:
        mail = Mail(address, SmtpSecurity.TLS, SENDER, OPS, ca=certificates.ca)
        notify(ledger, Notifier({"mail": mail}, AT_ONCE))
    assert [got["To"] for got in handler.mails] == [OPS]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("security", [SmtpSecurity.NONE, SmtpSecurity.TLS])
def test_mail__server_talks_without_an_end__is_broken_off_and_others_are_told(
    ledger: Ledger,
    webhook: WebhookReceiver,
    certificates: Certificates,
    at_once: ssl.SSLContext,
    security: SmtpSecurity,
) -> None:
    ledger.alarms.on(ALARM)
    tls = at_once if security is SmtpSecurity.TLS else None
    with talkative_server(tls) as address:
        mail = Mail(address, security, SENDER, OPS, ca=certificates.ca, limit_s=1.0)
        hook = notifier(webhook).channels
        notify(ledger, Notifier({"mail": mail, **hook}, AT_ONCE))
    assert kinds(webhook) == ["firing wallet_empty"]
    (failed,) = [each for each in messages(ledger) if each.channel == "mail"]
    assert "within 1 s" in failed.last_error


def test_mail__server_is_away_then_hangs_then_takes_it__is_one_mail(
    ledger: Ledger,
) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):  # it is silent
        address = f"127.0.0.1:{port}"
        mail = Notifier(
            {
                "mail": Mail(
                    address, SmtpSecurity.NONE, SENDER, OPS, timeout_s=deadline(0.5)
                )
            },
            AT_ONCE,
        )
        ledger.alarms.on(ALARM)
        notify(ledger, mail)
    assert "time" in messages(ledger)[0].last_error.lower()
    pass_time(ledger, 10)
    notify(ledger, mail)
    assert "refused" in messages(ledger)[0].last_error.lower()
    pass_time(ledger, 20)
    handler = MailReceiver()
    with mail_receiver(handler, port):
        notify(ledger, mail)
    assert len(handler.mails) == 1


@pytest.fixture
def slack(
    webhook: WebhookReceiver, migrated_ledger: tuple[Engine, dict[str, str]]
) -> Notifier:
    """What a worker makes of NOTIFY_SLACK_URL; the server answers with Slack's
    words.
    """
    webhook.texts = {200: "ok", 400: "invalid_payload"}
    slack = {
        "NOTIFY_SLACK_URL": f"{webhook.url}/services/T01/B02/{TOKEN}",
        "NOTIFY_STABLE_S": "0",
    }
    return notifier_of(load(Need.NOTIFY, environment=migrated_ledger[1] | slack))


def test_slack__answers_200__has_the_raise_and_its_end_once_each(
    ledger: Ledger, webhook: WebhookReceiver, slack: Notifier
) -> None:
    ledger.alarms.on(ALARM, balance_wei=12, error="<!channel> & more")
    notify(ledger, slack)
    notify(ledger, slack)
    ledger.alarms.off(ALARM)
    notify(ledger, slack)
    notify(ledger, slack)
    assert [path for path, _ in webhook.requests] == [f"/services/T01/B02/{TOKEN}"] * 2
    assert {headers["Content-Type"] for _, headers in webhook.requests} == {
        "application/json"
    }
    assert [list(body) for body in webhook.got] == [["text"], ["text"]]
    raised, resolved = (body["text"].splitlines() for body in webhook.got)
    assert raised[0] == "*[here] CRITICAL: wallet_empty*"
    assert {"balance_wei: 12", "error: &lt;!channel&gt; &amp; more"} <= set(raised)
    assert resolved[0] == "*[here] RESOLVED: wallet_empty*"
    assert [message.sent_at is not None for message in messages(ledger)] == [True, True]
    assert not is_due(ledger)


def test_slack__answers_400_invalid_payload__is_told_and_tried_again(
    ledger: Ledger, webhook: WebhookReceiver, slack: Notifier
) -> None:
    webhook.statuses = [400]
    ledger.alarms.on(ALARM)
    notify(ledger, slack)
    (message,) = messages(ledger)
    assert (message.channel, message.attempts, message.sent_at) == ("slack", 1, None)
    assert message.last_error == "HTTP status 400: invalid_payload"
    pass_time(ledger, 10)
    notify(ledger, slack)
    first, second = (body["text"].splitlines() for body in webhook.got)
    assert first[-1] == second[-1]
    assert re.fullmatch(r"_[0-9a-f-]{36}-raised_", first[-1])
    assert messages(ledger)[0].sent_at is not None


def test_alertmanager__raise__is_repeated_until_the_alarm_is_over(
    ledger: Ledger,
    webhook: WebhookReceiver,
    migrated_ledger: tuple[Engine, dict[str, str]],
) -> None:
    environment = migrated_ledger[1] | {
        "NOTIFY_ALERTMANAGER_URL": webhook.url + "/",
        "NOTIFY_STABLE_S": "0",
    }
    wanted = notifier_of(load(Need.NOTIFY, environment=environment))
    ledger.alarms.on(ALARM, balance_wei=12)
    notify(ledger, wanted)
    notify(ledger, wanted)
    assert len(webhook.got) == 1
    assert not is_due(ledger)
    for _ in range(2):
        pass_time(ledger, 61)
        assert is_due(ledger)
        notify(ledger, wanted)
    assert len(webhook.got) == 3
    ledger.alarms.off(ALARM)
    notify(ledger, wanted)
    pass_time(ledger, 3600)
    notify(ledger, wanted)
    alerts = [body[0] for body in webhook.got]  # type: ignore[index]
    assert len(alerts) == 4
    assert {path for path, _ in webhook.requests} == {"/api/v2/alerts"}
    assert len({json.dumps(alert["labels"]) for alert in alerts}) == 1
    assert [alert["endsAt"] > alerts[3]["endsAt"] for alert in alerts] == [
        True,
        True,
        True,
        False,
    ]
    assert not is_due(ledger)


def test_webhook__token_and_keys_in_the_url__show_in_no_error_log_or_alarm(
    ledger: Ledger,
    webhook: WebhookReceiver,
    migrated_ledger: tuple[Engine, dict[str, str]],
) -> None:
    environment = migrated_ledger[1] | {
        "NOTIFY_WEBHOOK_URL": f"{webhook.url}/services/{TOKEN}",
        "NOTIFY_WEBHOOK_TOKEN": "bearer-of-bad-news",
        "NOTIFY_SLACK_URL": f"http://127.0.0.1:1/services/{TOKEN}",
    }
    settings = load(Need.NOTIFY, environment=environment)
    webhook.statuses = [500] * 2
    ledger.alarms.on(ALARM, error=f"POST /services/{TOKEN} failed")
    with structlog.testing.capture_logs() as logs:
        notify(ledger, notifier_of(settings))
        pass_time(ledger, 400)
        notify(ledger, notifier_of(settings))
    shown = json.dumps(
        [str(logs), *(message.last_error for message in messages(ledger))]
    )
    shown += str(
        [alarm.details for alarm in ledger.alarms.all() if alarm.name != ALARM]
    )
    assert "HTTP status 500" in shown
    assert "alarm_message_not_sent" in shown
    assert TOKEN not in shown
    assert "bad-news" not in shown
    assert webhook.requests[0][1]["Authorization"] == "Bearer bearer-of-bad-news"
    assert TOKEN not in json.dumps(webhook.got)  # of the alarm's own details, too
    assert {TOKEN, "bearer-of-bad-news"} <= set(settings.secret_values())


def test_webhook__key_in_its_url__shows_in_no_error_of_the_channel_itself(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    webhook.statuses = [500]
    channel = Webhook(f"{webhook.url}/services/{TOKEN}", json_form)
    ledger.alarms.on(ALARM)
    notify(ledger, Notifier({"webhook": channel}, AT_ONCE))
    assert (
        messages(ledger)[0].last_error == "HTTP status 500: status 500 of (not shown)"
    )


def test_command__alarm_is_on__gets_the_message_and_no_key_of_the_worker(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETH_PRIVATE_KEY", "secret")
    script = f"cat > {tmp_path}/body; env > {tmp_path}/env"
    ledger.alarms.on(ALARM, balance_wei=12)
    notify(ledger, Notifier({"command": Command(("/bin/sh", "-c", script))}, AT_ONCE))
    assert json.loads((tmp_path / "body").read_text())["details"] == {"balance_wei": 12}
    variables = (tmp_path / "env").read_text()
    assert "ETH_PRIVATE_KEY" not in variables
    assert "ALARM_RUNBOOK_URL=docs/how-to/alarms/wallet_empty.md\n" in variables
    assert messages(ledger)[0].sent_at is not None


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ("/bin/sh", "-c", "echo no pager >&2; exit 3"),
            "/bin/sh ended with status 3: no pager",
        ),
        (("/nowhere/pager",), "/nowhere/pager: No such file or directory"),
    ],
)
def test_command__fails__is_tried_again(
    ledger: Ledger, words: tuple[str, ...], error: str
) -> None:
    ledger.alarms.on(ALARM)
    notify(ledger, Notifier({"command": Command(words)}, AT_ONCE))
    (message,) = messages(ledger)
    assert (message.last_error, message.attempts, message.sent_at) == (error, 1, None)


def test_command__hangs__ends_with_all_that_it_has_started(ledger: Ledger) -> None:
    ledger.alarms.on(ALARM)
    command = Command(("/bin/sh", "-c", "sleep 4711.5 & sleep 4711.5"), timeout_s=0.5)
    notify(ledger, Notifier({"command": command}, AT_ONCE))
    assert "has not ended within 0.5 s" in messages(ledger)[0].last_error

    # what is killed takes a moment to end, and these would sleep for more than an hour
    def all_ended() -> bool:
        sleeping = ["sleep", "4711.5"]
        return not [
            process
            for process in psutil.process_iter(["cmdline"])
            if process.info["cmdline"] == sleeping
        ]

    wait_until(all_ended, "all that it has started to end", 10.0)


# --- the test -------------------------------------------------------------------------


def test_ask_test__each_channel__tells_what_became_of_it(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    test_id = ledger.incidents.ask_test()
    assert is_due(ledger)
    assert ledger.incidents.test_outcomes(test_id) is None
    with webhook_receiver() as broken:
        broken.statuses = [503]
        notify(ledger, notifier(webhook, broken, policy=Policy()))
        outcomes = ledger.incidents.test_outcomes(test_id)
        assert outcomes is not None
        first, second = outcomes
        assert (first.channel, first.is_known, first.error) == ("webhook 0", True, None)
        assert (second.channel, second.after_s) == ("webhook 1", None)
        assert "HTTP status 503" in (second.error or "")
        pass_time(ledger, 100_000)
        notify(ledger, notifier(webhook, broken))
        assert len(broken.got) == 1  # a test is tried once, and raises no alarm
    assert kinds(webhook) == ["test test"]
    assert ledger.alarms.all() == []


def test_ask_test__no_channel__says_so(ledger: Ledger) -> None:
    test_id = ledger.incidents.ask_test()
    notify(ledger, notifier())
    assert ledger.incidents.test_outcomes(test_id) == []


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


@pytest.fixture
def known_cluster(ledger: Ledger) -> None:
    """A fleet has worked with this ledger, so the command knows the cluster."""
    ledger.periodic_runs.record("scan")


@pytest.mark.usefixtures("known_cluster")
def test_command_test__some_channel_fails__is_told_and_is_an_error(
    ledger: Ledger,
    webhook: WebhookReceiver,
    migrated_ledger: tuple[Engine, dict[str, str]],
) -> None:
    with webhook_receiver() as broken, worker(ledger, notifier(webhook, broken)):
        broken.statuses = [503]
        result = supervisor("alarm", "test", "--yes", env=migrated_ledger[1])
        assert result.exit_code == 1
        assert "has taken it after" in result.stdout
        assert "HTTP status 503" in result.stdout
        assert "1 channel without the test: webhook 1" in result.stderr
        result = supervisor("alarm", "test", "--yes", env=migrated_ledger[1])
        assert (result.exit_code, result.stdout.count("has taken it")) == (0, 2)


@pytest.mark.usefixtures("known_cluster")
def test_command_test__no_worker_or_no_channel__says_what_is_missing(
    ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    result = supervisor(
        "alarm", "test", "--yes", "--wait-s", "0.3", env=migrated_ledger[1]
    )
    assert (
        result.exit_code,
        "found no worker that has sent the test" in result.stderr,
    ) == (1, True)
    with worker(ledger, notifier()):
        result = supervisor("alarm", "test", "--yes", env=migrated_ledger[1])
    assert (
        result.exit_code,
        "found no channel in the workers' settings" in result.stderr,
    ) == (1, True)


@pytest.mark.usefixtures("known_cluster")
def test_command_drop__parked_messages__are_given_up_and_recorded(
    ledger: Ledger,
    webhook: WebhookReceiver,
    migrated_ledger: tuple[Engine, dict[str, str]],
) -> None:
    result = supervisor("alarm", "drop", "--yes", env=migrated_ledger[1])
    assert (result.exit_code, "found no message that is parked" in result.stderr) == (
        1,
        True,
    )
    webhook.statuses = [404, 404]
    ledger.alarms.on(ALARM)
    notify(ledger, notifier(webhook))
    pass_time(ledger, 86_401)
    notify(ledger, notifier(webhook))
    result = supervisor(
        "alarm", "drop", "--yes", "--reason", "gone", env=migrated_ledger[1]
    )
    assert (result.exit_code, "1 message will never be sent" in result.stderr) == (
        0,
        True,
    )
    notify(ledger, notifier(webhook))
    assert [alarm.name for alarm in ledger.alarms.all()] == [ALARM]
    assert "gone" in supervisor("log", env=migrated_ledger[1]).stdout


@pytest.mark.usefixtures("known_cluster")
def test_command_drop__nothing_else_is_due__beat_has_the_alarm_ended(
    ledger: Ledger,
    webhook: WebhookReceiver,
    migrated_ledger: tuple[Engine, dict[str, str]],
) -> None:
    webhook.statuses = [404, 404]
    ledger.alarms.on(ALARM)
    work_as_beat_asks(ledger, notifier(webhook))
    pass_time(ledger, 86_401)
    work_as_beat_asks(ledger, notifier(webhook))
    assert [alarm.name for alarm in ledger.alarms.all()] == [
        ALARM,
        AlarmName.NOTIFICATIONS_FAILING,
    ]
    result = supervisor("alarm", "drop", "--yes", env=migrated_ledger[1])
    assert result.exit_code == 0
    work_as_beat_asks(ledger, notifier(webhook))
    assert [alarm.name for alarm in ledger.alarms.all()] == [ALARM]
    assert kinds(webhook)[2:] == [
        "firing notifications_failing",
        "resolved notifications_failing",
    ]


# --- quiet hours ----------------------------------------------------------------------


def with_quiet_hours(
    webhook: WebhookReceiver, environment: dict[str, str], over_for: timedelta
) -> Notifier:
    """What a worker makes of NOTIFY_QUIET_HOURS: two hours, which have been over for so
    long; below 0, they last.
    """
    end = datetime.now(UTC) - over_for
    hours = f"{end - timedelta(hours=2):%H:%M}-{end:%H:%M} UTC"
    wanted = {
        "NOTIFY_WEBHOOK_URL": webhook.url,
        "NOTIFY_QUIET_HOURS": hours,
        "NOTIFY_STABLE_S": "0",
    }
    return notifier_of(load(Need.NOTIFY, environment=environment | wanted))


def test_quiet_hours__alarm_begins_in_them__is_held_and_told_at_their_end(
    ledger: Ledger,
    webhook: WebhookReceiver,
    migrated_ledger: tuple[Engine, dict[str, str]],
) -> None:
    quiet = with_quiet_hours(webhook, migrated_ledger[1], timedelta(hours=-1))
    ledger.alarms.on(AlarmName.CLAIMS_FULL)
    ledger.alarms.on(ALARM)
    notify(ledger, quiet)
    assert kinds(webhook) == ["firing wallet_empty"]  # it is critical
    assert not is_due(ledger)
    pass_time(ledger, 7_200)  # the hours move with the rows: their end was an hour ago
    assert is_due(ledger)
    loud = with_quiet_hours(webhook, migrated_ledger[1], timedelta(hours=1))
    notify(ledger, loud)
    notify(ledger, loud)
    assert kinds(webhook) == ["firing wallet_empty", "firing claims_full"]
    ledger.alarms.off(AlarmName.CLAIMS_FULL)
    notify(ledger, loud)
    assert kinds(webhook)[2:] == ["resolved claims_full"]


def test_quiet_hours__alarm_ends_in_them__its_end_is_told_after_them(
    ledger: Ledger,
    webhook: WebhookReceiver,
    migrated_ledger: tuple[Engine, dict[str, str]],
) -> None:
    ledger.alarms.on(AlarmName.CLAIMS_FULL)
    notify(ledger, with_quiet_hours(webhook, migrated_ledger[1], timedelta(hours=1)))
    pass_time(ledger, 79_200)  # 22 hours later
    quiet = with_quiet_hours(webhook, migrated_ledger[1], timedelta(hours=-1))
    ledger.alarms.off(AlarmName.CLAIMS_FULL)
    notify(ledger, quiet)
    assert kinds(webhook) == ["firing claims_full"]
    assert not is_due(ledger)
    pass_time(ledger, 7_200)
    notify(ledger, with_quiet_hours(webhook, migrated_ledger[1], timedelta(hours=1)))
    assert kinds(webhook) == ["firing claims_full", "resolved claims_full"]


def test_quiet_hours__alarm_begins_and_ends_in_them__is_never_told(
    ledger: Ledger,
    webhook: WebhookReceiver,
    migrated_ledger: tuple[Engine, dict[str, str]],
) -> None:
    quiet = with_quiet_hours(webhook, migrated_ledger[1], timedelta(hours=-1))
    ledger.alarms.on(AlarmName.CLAIMS_FULL)
    notify(ledger, quiet)
    ledger.alarms.off(AlarmName.CLAIMS_FULL)
    notify(ledger, quiet)
    pass_time(ledger, 7_200)
    notify(ledger, with_quiet_hours(webhook, migrated_ledger[1], timedelta(hours=1)))
    assert webhook.got == []
    assert not is_due(ledger)


# --- silence --------------------------------------------------------------------------


def in_a_while(**units: float) -> datetime:
    return datetime.now(UTC) + timedelta(**units)


def test_silence__until_it_is_over__nothing_of_this_alarm_is_told_and_others_are(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    ledger.incidents.silence(ALARM, in_a_while(hours=1), "we know")
    ledger.alarms.on(ALARM)
    ledger.alarms.on(AlarmName.CLAIMS_FULL)
    notify(ledger, notifier(webhook))
    assert kinds(webhook) == ["firing claims_full"]
    assert not is_due(ledger)
    pass_time(ledger, 3_601)
    assert is_due(ledger)
    notify(ledger, notifier(webhook))
    assert kinds(webhook) == ["firing claims_full", "firing wallet_empty"]


def test_silence__alarm_begins_and_ends_in_it__is_never_told(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    ledger.incidents.silence(ALARM, in_a_while(hours=1), "we know")
    ledger.alarms.on(ALARM)
    ledger.alarms.off(ALARM)
    pass_time(ledger, 3_601)  # no worker has looked until it was over
    notify(ledger, notifier(webhook))
    assert kinds(webhook) == []
    assert not is_due(ledger)


def test_silence__messages_that_fail_or_are_repeated__wait_for_its_end(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    webhook.statuses = [503]
    ledger.alarms.on(ALARM)
    notify(ledger, notifier(webhook))
    tries = kinds(webhook).count("firing wallet_empty")
    ledger.incidents.silence(ALARM, in_a_while(hours=2), "we know")
    pass_time(ledger, 3_600)
    notify(ledger, notifier(webhook))
    assert kinds(webhook).count("firing wallet_empty") == tries
    assert ledger.incidents.unsilence(ALARM)
    assert not ledger.incidents.unsilence(ALARM)
    notify(ledger, notifier(webhook))
    assert kinds(webhook).count("firing wallet_empty") == tries + 1


DAY_S = 86_400.0


def names_of_alarms(ledger: Ledger) -> list[str]:
    return [alarm.name for alarm in ledger.alarms.all()]


def silenced_after_a_failure(ledger: Ledger, webhook: WebhookReceiver) -> None:
    """An alarm whose message fails once before the operator silences it for three
    days.
    """
    webhook.statuses = [503]
    ledger.alarms.on(ALARM)
    work_as_beat_asks(ledger, notifier(webhook))
    ledger.incidents.silence(ALARM, in_a_while(days=3), "we know")
    work_as_beat_asks(ledger, notifier(webhook))


def test_silence__message_failed_before_it__is_no_trouble_of_the_channel(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    silenced_after_a_failure(ledger, webhook)
    pass_time(ledger, 2 * DAY_S)
    ledger.alarms.on(AlarmName.CLAIMS_FULL)  # its message makes a worker look
    work_as_beat_asks(ledger, notifier(webhook))
    assert kinds(webhook) == ["firing wallet_empty", "firing claims_full"]
    assert names_of_alarms(ledger) == [ALARM, AlarmName.CLAIMS_FULL]


def test_silence__channel_was_late_before_it__the_alarm_about_it_ends(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    webhook.statuses = [503, 503]
    ledger.alarms.on(ALARM)
    work_as_beat_asks(ledger, notifier(webhook))
    pass_time(ledger, 301)
    work_as_beat_asks(ledger, notifier(webhook))
    assert names_of_alarms(ledger) == [ALARM, AlarmName.NOTIFICATIONS_FAILING]
    ledger.incidents.silence(ALARM, in_a_while(days=3), "we know")
    work_as_beat_asks(ledger, notifier(webhook))
    assert names_of_alarms(ledger) == [ALARM]


@pytest.mark.parametrize("lifted_after_s", [2 * DAY_S, None])
def test_silence__is_over_and_a_try_fails__the_failing_begins_again(
    ledger: Ledger, webhook: WebhookReceiver, lifted_after_s: float | None
) -> None:
    silenced_after_a_failure(ledger, webhook)
    if lifted_after_s is None:
        pass_time(ledger, 3 * DAY_S + 1)
    else:
        pass_time(ledger, lifted_after_s)
        assert ledger.incidents.unsilence(ALARM)
    webhook.statuses = [503]
    work_as_beat_asks(ledger, notifier(webhook))
    assert messages(ledger)[0].parked_at is None
    assert names_of_alarms(ledger) == [ALARM]
    pass_time(ledger, 60)
    work_as_beat_asks(ledger, notifier(webhook))
    assert kinds(webhook) == ["firing wallet_empty"] * 3
    assert messages(ledger)[0].sent_at is not None


def test_silence__channel_fails_for_a_day_after_it__message_is_parked(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    silenced_after_a_failure(ledger, webhook)
    pass_time(ledger, 3 * DAY_S + 1)
    webhook.statuses = [503] * 2
    work_as_beat_asks(ledger, notifier(webhook))
    pass_time(ledger, DAY_S + 1)
    work_as_beat_asks(ledger, notifier(webhook))
    assert messages(ledger)[0].parked_at is not None
    assert names_of_alarms(ledger) == [ALARM, AlarmName.NOTIFICATIONS_FAILING]


def test_silence__begins_while_a_message_fails__raises_no_alarm(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    ledger.alarms.on(ALARM)
    notify(ledger, notifier())
    ledger.incidents.make_all_due()
    with ledger.engine.begin() as connection:
        for incident, now in ledger.incidents.to_plan(connection):
            wanted = plan(incident, ["webhook 0"], True, AT_ONCE, now)
            ledger.incidents.store_plan(connection, incident, wanted)
    (message,) = ledger.incidents.due()
    ledger.incidents.silence(ALARM, in_a_while(days=3), "we know")
    ledger.incidents.failed(message, "HTTP status 503", again_s=5.0, give_up_s=DAY_S)
    pass_time(ledger, 2 * DAY_S)
    notify(ledger, notifier(webhook))
    assert names_of_alarms(ledger) == [ALARM]


def test_silence__another_cluster__is_not_silent(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    Ledger(ledger.engine, "there", lambda _: None).incidents.silence(
        ALARM, in_a_while(hours=1), "we know"
    )
    ledger.alarms.on(ALARM)
    notify(ledger, notifier(webhook))
    assert kinds(webhook) == ["firing wallet_empty"]


@pytest.mark.usefixtures("known_cluster")
def test_command_silence__of_an_alarm__is_listed_recorded_and_ended(
    ledger: Ledger, migrated_ledger: tuple[Engine, dict[str, str]]
) -> None:
    def run(*words: str, status: int = 0) -> Result:
        result = supervisor(*words, env=migrated_ledger[1])
        assert result.exit_code == status, result.output
        return result

    ledger.alarms.on(ALARM)
    said = run(
        "alarm",
        "silence",
        "wallet_empty",
        "--for",
        "2h",
        "--reason",
        "coins are on their way",
        "--yes",
    )
    assert "no message of wallet_empty will be sent until" in said.stderr
    run(
        "alarm",
        "silence",
        "claims_full",
        "--until",
        "2001-01-01",
        "--reason",
        "x",
        "--yes",
        status=2,
    )
    run(
        "alarm",
        "silence",
        "claims_full",
        "--for",
        "999999w",
        "--reason",
        "x",
        "--yes",
        status=2,
    )
    run("alarm", "silence", "claims_full", "--reason", "x", "--yes", status=2)
    run(
        "alarm",
        "silence",
        "no_such_alarm",
        "--for",
        "1h",
        "--reason",
        "x",
        "--yes",
        status=2,
    )
    run(
        "alarm",
        "silence",
        "claims_full",
        "--until",
        f"{in_a_while(days=3):%Y-%m-%dT%H:%M}",
        "--reason",
        "busy",
        "--yes",
    )
    assert set(ledger.incidents.silences()) == {"wallet_empty", "claims_full"}
    listed = run("alarm", "list").stdout
    assert "in 1h59m" in listed
    assert "coins are on their way" in listed
    assert "busy" in listed  # it is off, and silenced
    (row,) = json.loads(run("alarm", "list", "-o", "json").stdout)
    assert (row["name"], row["silence_reason"]) == (
        "wallet_empty",
        "coins are on their way",
    )
    assert "coins are on their way" in run("alarm", "show", "wallet_empty").stdout
    assert "coins are on their way" in run("log").stdout
    run("alarm", "unsilence", "wallet_empty", "--yes")
    assert set(ledger.incidents.silences()) == {"claims_full"}
    assert (
        "not silenced"
        in run("alarm", "unsilence", "wallet_empty", "--yes", status=1).stderr
    )


# --- what is seen of the messages -----------------------------------------------------


def test_command_show__one_channel_fails__has_sent_tries_and_error_of_each(
    ledger: Ledger,
    webhook: WebhookReceiver,
    migrated_ledger: tuple[Engine, dict[str, str]],
) -> None:
    webhook.statuses = [500]
    ledger.alarms.on(ALARM)
    with webhook_receiver() as other:
        notify(ledger, notifier(webhook, other))
    failing, sent = json.loads(
        supervisor("alarm", "show", ALARM, "-o", "json", env=migrated_ledger[1]).stdout
    )["messages"]
    assert (failing["channel"], failing["kind"], failing["state"]) == (
        "webhook 0",
        "raised",
        "failing",
    )
    assert (failing["sent_at"], failing["failed_tries"]) == (None, 1)
    assert "HTTP status 500" in failing["last_error"]
    assert datetime.fromisoformat(failing["next_at"]) > datetime.fromisoformat(
        failing["failing_since"]
    )
    assert (sent["channel"], sent["kind"], sent["state"]) == (
        "webhook 1",
        "raised",
        "sent",
    )
    assert datetime.fromisoformat(sent["sent_at"]) >= datetime.fromisoformat(
        sent["created_at"]
    )
    assert (sent["next_at"], sent["failed_tries"], sent["last_error"]) == (
        None,
        0,
        None,
    )
    lines = supervisor(
        "alarm", "show", ALARM, env=migrated_ledger[1]
    ).stdout.splitlines()
    table = lines[lines.index("") + 1 :]
    assert table[0].split() == [
        "CHANNEL",
        "KIND",
        "STATE",
        "SENT",
        "NEXT",
        "FAILED",
        "LAST",
        "ERROR",
    ]
    assert [line.split()[:4] for line in table[1:]] == [
        ["webhook", "0", "raised", "failing"],
        ["webhook", "1", "raised", "sent"],
    ]


def test_messages_of_last__a_second_incident__has_none_of_the_first(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    def kinds_and_states() -> list[tuple[str, str]]:
        return [
            (message.kind.value, message.state)
            for message in ledger.incidents.messages_of_last(ALARM)
        ]

    assert kinds_and_states() == []
    ledger.alarms.on(ALARM)
    notify(ledger, notifier(webhook))
    ledger.alarms.off(ALARM)
    notify(ledger, notifier(webhook))
    assert kinds_and_states() == [("raised", "sent"), ("resolved", "sent")]
    ledger.alarms.on(ALARM)
    notify(ledger, notifier(webhook))
    assert kinds_and_states() == [("raised", "sent")]


def test_figures__a_message_on_its_way__is_counted_by_its_state(
    ledger: Ledger, webhook: WebhookReceiver
) -> None:
    def counted() -> dict[str, int]:
        assert read_figures(ledger.engine, "there").messages == {}
        return dict(read_figures(ledger.engine, "here").messages)

    webhook.statuses = [404, 404]
    ledger.alarms.on(ALARM)
    with ledger.engine.begin() as connection:
        for incident, now in ledger.incidents.to_plan(connection):
            ledger.incidents.store_plan(
                connection, incident, plan(incident, ["webhook 0"], True, AT_ONCE, now)
            )
    assert counted() == {"due": 1}
    ledger.incidents.silence(ALARM, in_a_while(days=1), "known")
    assert counted() == {"waiting": 1}
    ledger.incidents.unsilence(ALARM)
    notify(ledger, notifier(webhook))
    assert counted() == {"failing": 1}
    pass_time(ledger, 86_401)
    assert counted() == {"failing": 1}  # though it is due again
    notify(ledger, notifier(webhook))
    assert counted() == {"parked": 1}
    ledger.incidents.drop_parked()
    assert counted() == {}
    assert [message.state for message in ledger.incidents.messages_of_last(ALARM)] == [
        "dropped"
    ]
