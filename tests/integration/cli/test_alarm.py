"""The commands for alarms and their messages, with a worker that sends these."""

import json
from datetime import datetime

from sqlalchemy import Engine, text

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.notifications.deliver import notify
from tests.support.alarm_messages import (
    ALARM,
    in_a_while,
    kinds,
    notifier,
    pass_time,
    work_as_beat_asks,
    worker,
)
from tests.support.commands import Result, supervisor
from tests.support.operator_commands import Run
from tests.support.receivers import WebhookReceiver, webhook_receiver


def test_alarm_list__since_sort_and_limit__narrow_and_order_it(
    run: Run, ledger: Ledger
) -> None:
    def names(*words: str) -> list[str]:
        return run("alarm", "list", *words, "-o", "name").stdout.split()

    for name in (AlarmName.WALLET_EMPTY, AlarmName.CLAIMS_FULL):
        ledger.alarms.on(name)
    with ledger.engine.begin() as connection:
        older = "UPDATE alarms SET raised_at = now() - interval '2 hours' WHERE name = 'wallet_empty'"
        connection.execute(text(older))
    assert names() == names("--sort", "age") == ["wallet_empty", "claims_full"]
    assert names("--sort", "name") == ["claims_full", "wallet_empty"]
    assert names("--since", "1h") == ["claims_full"]
    assert names("--limit", "1") == ["wallet_empty"]


def test_alarm_test__some_channel_fails__is_told_and_is_an_error(
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


def test_alarm_test__no_worker_or_no_channel__says_what_is_missing(
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


def test_alarm_drop__parked_messages__are_given_up_and_recorded(
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


def test_alarm_drop__nothing_else_is_due__beat_has_the_alarm_ended(
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


def test_alarm_silence__of_an_alarm__is_listed_recorded_and_ended(
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
    for refused in (
        ("claims_full", "--until", "2001-01-01"),
        ("claims_full", "--for", "999999w"),
        ("claims_full",),
        ("no_such_alarm", "--for", "1h"),
    ):
        run("alarm", "silence", *refused, "--reason", "x", "--yes", status=2)
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


def test_alarm_show__one_channel_fails__has_sent_tries_and_error_of_each(
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
