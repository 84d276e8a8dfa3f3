"""The incidents of alarms and their messages, on a real Postgres."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from supervisor_tasks.ledger.figures import read_figures
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.notifications.deliver import notify
from supervisor_tasks.notifications.delivery_rules import Policy, plan
from tests.support.alarm_messages import (
    ALARM,
    AT_ONCE,
    in_a_while,
    is_due,
    kinds,
    messages,
    notifier,
    pass_time,
)
from tests.support.receivers import WebhookReceiver, webhook_receiver


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
