"""Each kind of channel, with real HTTP and SMTP servers and programs."""

import json
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import pytest
import structlog
from sqlalchemy import Engine

from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import wait_until
from devgrid.tls import Certificates
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import load
from supervisor_tasks.from_settings.notification_channels import notifier_of
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.notifications.deliver import notify
from supervisor_tasks.notifications.forms import json_form
from supervisor_tasks.site_services.channels import (
    Command,
    Mail,
    Notifier,
    SmtpSecurity,
    Webhook,
)
from tests.support.alarm_messages import (
    ALARM,
    AT_ONCE,
    BOSS,
    OPS,
    SENDER,
    is_due,
    kinds,
    messages,
    notifier,
    pass_time,
)
from tests.support.receivers import MailReceiver, WebhookReceiver, mail_receiver

TOKEN = "T0K3N-of-the-chat-4711"


def server_context(certificates: Certificates) -> ssl.SSLContext:
    """TLS of a mail server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    return context


def mail_to(address: str, certificates: Certificates) -> Mail:
    """Mail by a server that wants TLS and a login."""
    login = "fleet", "correct-horse"
    return Mail(
        address, SmtpSecurity.STARTTLS, SENDER, OPS, *login, certificates.ca, 5.0
    )


def test_mail__server_with_tls_and_login__takes_it(
    ledger: Ledger, certificates: Certificates
) -> None:
    handler, context = MailReceiver(), server_context(certificates)
    ledger.alarms.on(ALARM, balance_wei=12)
    with mail_receiver(handler, tls=context, with_login=True) as address:
        mail = mail_to(address, certificates)
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
    handler, context = MailReceiver(), server_context(certificates)
    ledger.alarms.on(ALARM)
    with mail_receiver(handler, tls=context, with_login=True) as address:
        mail = mail_to(address, certificates)
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
