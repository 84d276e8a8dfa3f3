"""Messages about alarms, on a real Postgres and with real servers that are away, fail, hang,
or see the worker die; quiet hours and silences.
"""

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from threading import Barrier, Thread

import pytest
from sqlalchemy import Engine, text

from devgrid import REPOSITORY
from devgrid.machine import Deadline, deadline
from devgrid.ports import free_port
from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import load
from supervisor_tasks.from_settings.notification_channels import notifier_of
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.notifications.deliver import FIRST_WAIT_S, notify
from supervisor_tasks.notifications.delivery_rules import Policy, plan
from supervisor_tasks.site_services.channels import Notifier
from tests.support.alarm_messages import (
    ALARM,
    AT_ONCE,
    OPS,
    SENDER,
    in_a_while,
    is_due,
    kinds,
    messages,
    notifier,
    pass_time,
    work_as_beat_asks,
)
from tests.support.receivers import (
    HANGS,
    MailReceiver,
    WebhookReceiver,
    mail_receiver,
    webhook_receiver,
)


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
        patience = Deadline(8.0)
        notify(ledger, notifier(webhook, other, hung=[webhook]))
        # one time-out, not one for each message
        assert not patience.is_over()
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
