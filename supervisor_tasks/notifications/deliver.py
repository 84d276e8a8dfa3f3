"""Plans the messages that the alarms need, and sends those that are due.

One worker of the cluster does this at a time. It records each message after the channel
has taken it. So a message is sent again, with the same key, when the worker ends in
between; none is lost.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import structlog

from supervisor_tasks.alarms.alarm_meanings import CRITICAL, Meaning, meaning_of
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.config.redaction import cleaned
from supervisor_tasks.execution.backoff import retry_delay_s
from supervisor_tasks.execution.exclusive_run import run_exclusive
from supervisor_tasks.ledger.incidents import OpenMessage
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.notifications.delivery_rules import plan
from supervisor_tasks.notifications.incident_messages import (
    TEST,
    Incident,
    MessageKind,
    Notice,
)
from supervisor_tasks.site_services.channels import Channel, DeliveryError, Notifier

log = structlog.get_logger()

NOT_CRITICAL = frozenset(AlarmName) - CRITICAL
FIRST_WAIT_S = 5.0
MAX_WAIT_S = 900.0
OF_A_TEST = Meaning("An operator tests whether alarms arrive here.", "Nothing.")


def notify(ledger: Ledger, notifier: Notifier) -> None:
    """Plan and send the messages that are due, unless another worker does it. A channel
    that fails is tried again later, and raises nothing. Raises LedgerUnavailableError,
    when the database does not answer; a retry helps.
    """
    run_exclusive(ledger, "notify", lambda: _notify(ledger, notifier))


def _notify(ledger: Ledger, notifier: Notifier) -> bool:
    """Return whether messages were planned or sent: then more may be due now, as a
    resolution follows its raise.
    """
    planned = _plan(ledger, notifier)
    try:
        sent = _send(ledger, notifier)
    finally:
        update_message_alarm(ledger, notifier)
    return planned or sent


def _plan(ledger: Ledger, notifier: Notifier) -> bool:
    with ledger.engine.begin() as connection:
        due = ledger.incidents.to_plan(connection)
        for incident, now in due:
            critical = is_critical(incident.alarm)
            planned = plan(
                incident, notifier.channels.keys(), critical, notifier.policy, now
            )
            ledger.incidents.store_plan(connection, incident, planned)
    return bool(due)


def _send(ledger: Ledger, notifier: Notifier) -> bool:
    """Send what is due, channel by channel. The first failure of a channel postpones
    the rest of its messages.
    """
    sent = False
    due = sorted(ledger.incidents.due(), key=lambda message: message.channel)
    for _, messages in groupby(due, key=lambda message: message.channel):
        sent |= _send_to_channel(ledger, notifier, list(messages))
    return sent


def _send_to_channel(
    ledger: Ledger, notifier: Notifier, messages: Sequence[OpenMessage]
) -> bool:
    """Return whether the channel has taken a message."""
    for number, message in enumerate(messages):
        try:
            channel = _channel(notifier, message.channel)
            channel.send(_notice(ledger.cluster, message, notifier))
        except DeliveryError as error:
            _postpone(ledger, notifier, message, error)
            return number > 0
        except Exception as error:
            _postpone(ledger, notifier, message, DeliveryError(repr(error)))
            raise
        repeat_s = None
        if message.kind is MessageKind.RAISED:
            repeat_s = channel.repeat_s
        ledger.incidents.sent(message, repeat_s)
        log.info("alarm_message_sent", **_about(message))
    return True


def _channel(notifier: Notifier, name: str) -> Channel:
    channel = notifier.channels.get(name)
    if channel is None:  # the settings were changed, or are changed now
        raise DeliveryError(
            f"no setting NOTIFY_* of this worker has the channel {name!r}"
        )
    return channel


def _postpone(
    ledger: Ledger, notifier: Notifier, message: OpenMessage, error: DeliveryError
) -> None:
    shown = notifier.hide(str(error))
    attempts = max(message.attempts, ledger.incidents.most_attempts(message.channel))
    again_s = max(
        retry_delay_s(attempts, MAX_WAIT_S, FIRST_WAIT_S), error.retry_after_s
    )
    parked = ledger.incidents.failed(message, shown, again_s, notifier.give_up_after_s)
    if parked:
        log.error("alarm_message_parked", error=shown, **_about(message))
    else:
        log.warning(
            "alarm_message_not_sent",
            error=shown,
            again_s=round(again_s),
            **_about(message),
        )


def _about(message: OpenMessage) -> dict[str, Any]:
    incident = message.incident
    about = {
        "channel": message.channel,
        "alarm": incident.alarm,
        "kind": message.kind.value,
    }
    return about | {"message_id": _key(message)}


def update_message_alarm(ledger: Ledger, notifier: Notifier) -> None:
    """Raise the alarm while messages have failed for long or are parked, and end it
    when there are none. It reaches the operator by the other channels.
    """
    undelivered = ledger.incidents.undelivered(notifier.late_after_s)
    if not undelivered.messages:
        ledger.alarms.off(AlarmName.NOTIFICATIONS_FAILING)
        return
    ledger.alarms.on(
        AlarmName.NOTIFICATIONS_FAILING,
        channels=list(undelivered.channels),
        messages=undelivered.messages,
        parked=undelivered.parked,
        for_s=round(undelivered.for_s),
        last_error=undelivered.last_error,
    )


def is_critical(alarm: str) -> bool:
    """Whether an alarm is sent in the quiet hours, too. An alarm of another version
    is.
    """
    return alarm not in NOT_CRITICAL


def _notice(cluster: str, message: OpenMessage, notifier: Notifier) -> Notice:
    incident: Incident = message.incident
    meaning = OF_A_TEST if incident.alarm == TEST else meaning_of(incident.alarm)
    return Notice(
        key=_key(message),
        kind=message.kind,
        cluster=cluster,
        alarm=incident.alarm,
        critical=is_critical(incident.alarm),
        cause=meaning.cause,
        advice=meaning.advice,
        details=cleaned(dict(incident.details), notifier.hide),
        raised_at=incident.raised_at,
        cleared_at=incident.cleared_at,
        raises=incident.raises,
        runbook_url=notifier.page_of(incident.alarm),
    )


def _key(message: OpenMessage) -> str:
    return f"{message.incident.key}-{message.kind}"
