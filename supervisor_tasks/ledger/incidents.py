"""Incidents of alarms and the messages about them: which messages are left to send, and
to which channel.

The raise or the end of an alarm and the change of its incident are one transaction. The
notify task plans the messages and sends them. Only one worker at a time does this,
under a lock that ends with the worker. A message that was sent, and whose worker ended
before it recorded that, is sent again with the same key.

Messages are no effects of the outbox. A try that fails counts against one message and
postpones all messages of its channel; an effect that another one's failure postpones
would count as carried out. A parked message must not raise the alarm about parked
effects, because that alarm would be one more message to the channel that fails.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, text

from supervisor_tasks.ledger.database import read_connection
from supervisor_tasks.ledger.incidents_sql import (
    FAILING_SINCE,
    MAY_BE_SENT,
    MESSAGE_STATE,
)
from supervisor_tasks.ledger.stored_text import sanitize_and_truncate
from supervisor_tasks.notifications.delivery_rules import NoticePlan
from supervisor_tasks.notifications.incident_messages import (
    TEST,
    Incident,
    MessageKind,
    Silence,
)

MAX_INCIDENTS = 100  # incidents or messages that are read at a time

OPEN_OR_GO_ON = text(
    """
    INSERT INTO alarm_incidents (cluster, alarm, details) VALUES (:cluster, :alarm, CAST(:details AS jsonb))
    ON CONFLICT (cluster, alarm) WHERE closed_at IS NULL AND alarm <> 'test'
    DO UPDATE SET cleared_at = NULL, details = excluded.details, raises = alarm_incidents.raises + 1, due_at = now()
    """
)
CLEAR = text(
    """
    UPDATE alarm_incidents SET cleared_at = now(), due_at = now()
    WHERE cluster = :cluster AND alarm = :alarm AND closed_at IS NULL AND cleared_at IS NULL
    """
)

_MAKE_DUE = text(
    "UPDATE alarm_incidents SET due_at = now() WHERE cluster = :cluster AND closed_at IS NULL"
)
_SILENCE = text(
    """
    INSERT INTO alarm_silences (cluster, alarm, ends_at, reason) VALUES (:cluster, :alarm, :ends_at, :reason)
    ON CONFLICT (cluster, alarm) DO UPDATE SET ends_at = excluded.ends_at, reason = excluded.reason,
        begun_at = CASE WHEN alarm_silences.ends_at > now() THEN alarm_silences.begun_at ELSE now() END
    """
)
_UNSILENCE = text(
    "UPDATE alarm_silences SET ends_at = now() WHERE cluster = :cluster AND alarm = :alarm AND ends_at > now()"
)
_SILENCES = text(
    "SELECT alarm, begun_at, ends_at, reason FROM alarm_silences WHERE cluster = :cluster AND ends_at > now() ORDER BY alarm"
)
_TO_PLAN = text(
    """
    SELECT incident.*, now() AS present, ARRAY(
        SELECT channel FROM alarm_messages WHERE incident_id = incident.id AND kind = 'raised') AS notified,
        silence.begun_at AS silent_from, silence.ends_at AS silent_until
    FROM alarm_incidents AS incident LEFT JOIN alarm_silences AS silence USING (cluster, alarm)
    WHERE cluster = :cluster AND due_at <= now() ORDER BY id LIMIT :most FOR UPDATE OF incident
    """
)
# No resolution follows a raise that the operator has dropped.
_WRITE = text(
    """
    INSERT INTO alarm_messages (cluster, incident_id, channel, kind)
    SELECT :cluster, :incident_id, :channel, :kind WHERE :kind <> 'resolved' OR NOT EXISTS (
        SELECT FROM alarm_messages WHERE incident_id = :incident_id AND channel = :channel AND kind = 'raised'
            AND done_at IS NOT NULL AND sent_at IS NULL)
    ON CONFLICT DO NOTHING
    """
)
_STORE_PLAN = text(
    """
    UPDATE alarm_incidents SET due_at = :look_again_at, closed_at = CASE WHEN :closed THEN now() ELSE closed_at END
    WHERE id = :id
    """
)
# The raise of an incident that is over is not repeated.
_END_REPEATS = text(
    "UPDATE alarm_messages SET done_at = now() WHERE incident_id = :id AND sent_at IS NOT NULL AND done_at IS NULL"
)
# A message that was never tried goes first, so that one that its receiver always
# rejects delays no other.
_DUE = text(
    f"""
    SELECT message.id, message.channel, message.kind, message.attempts, incident.id AS incident_id, incident.key,
        incident.alarm, incident.raised_at, incident.cleared_at, incident.raises, incident.details
    FROM alarm_messages AS message JOIN alarm_incidents AS incident ON incident.id = message.incident_id
    WHERE message.cluster = :cluster AND {MAY_BE_SENT}
    ORDER BY message.attempts, message.id LIMIT :most
    """  # noqa: S608
)
_OF_LAST_INCIDENT = text(
    f"""
    SELECT message.channel, message.kind, {MESSAGE_STATE} AS state, message.created_at, message.sent_at,
        CASE WHEN message.done_at IS NULL AND message.parked_at IS NULL AND message.due_at > now()
            THEN message.due_at END AS next_at,
        message.attempts, message.failing_since, message.last_error
    FROM alarm_messages AS message WHERE message.incident_id = (
        SELECT max(id) FROM alarm_incidents WHERE cluster = :cluster AND alarm = :alarm)
    ORDER BY message.id
    """  # noqa: S608
)
_SENT = text(
    """
    UPDATE alarm_messages AS message SET sent_at = COALESCE(sent_at, now()), attempts = 0, failing_since = NULL,
        last_error = NULL, due_at = now() + COALESCE(CAST(:again_s AS float8), 0) * interval '1 second',
        done_at = CASE WHEN CAST(:again_s AS float8) IS NULL OR incident.closed_at IS NOT NULL THEN now() END
    FROM alarm_incidents AS incident WHERE message.id = :id AND incident.id = message.incident_id
    """
)
_FAILED = text(
    f"""
    UPDATE alarm_messages AS message SET attempts = attempts + 1,
        failing_since = COALESCE({FAILING_SINCE}, now()),
        last_error = :error,
        done_at = CASE WHEN kind = 'test' THEN now() END,
        parked_at = CASE
            WHEN kind <> 'test' AND {FAILING_SINCE} < now() - :give_up_s * interval '1 second' THEN now() END
    WHERE id = :id RETURNING parked_at IS NOT NULL AS parked
    """  # noqa: S608
)
_POSTPONE = text(
    """
    UPDATE alarm_messages SET due_at = now() + :again_s * interval '1 second'
    WHERE cluster = :cluster AND channel = :channel AND done_at IS NULL AND due_at <= now()
    """
)
# A message that the channel rejects while it takes others is no sign that the channel
# is away.
_MOST_ATTEMPTS = text(
    """
    SELECT COALESCE(max(attempts), 0) FROM alarm_messages AS message
    WHERE cluster = :cluster AND channel = :channel AND done_at IS NULL AND parked_at IS NULL AND NOT EXISTS (
        SELECT FROM alarm_messages AS taken WHERE taken.cluster = :cluster AND taken.channel = :channel
            AND taken.sent_at > message.failing_since)
    """
)
_REVIVE = text(
    """
    UPDATE alarm_messages SET due_at = now(), parked_at = NULL, failing_since = NULL, attempts = 0
    WHERE cluster = :cluster AND channel = :channel AND done_at IS NULL AND failing_since IS NOT NULL
    """
)
_DROP = text(
    """
    UPDATE alarm_messages SET done_at = now() WHERE cluster = :cluster AND done_at IS NULL AND incident_id IN (
        SELECT incident_id FROM alarm_messages AS parked WHERE parked.channel = alarm_messages.channel
            AND parked.cluster = :cluster AND parked.done_at IS NULL AND parked.parked_at IS NOT NULL)
    """
)
_UNDELIVERED = text(
    f"""
    SELECT count(*) AS messages, count(parked_at) AS parked, array_agg(DISTINCT channel) AS channels,
        COALESCE(max(EXTRACT(EPOCH FROM now() - failing_since)), 0)::float8 AS for_s,
        (array_agg(last_error ORDER BY failing_since DESC))[1] AS last_error
    FROM alarm_messages AS message WHERE cluster = :cluster AND done_at IS NULL AND failing_since IS NOT NULL
        AND (parked_at IS NOT NULL OR {FAILING_SINCE} < now() - :late_s * interval '1 second')
    """  # noqa: S608
)
_ASK_TEST = text(
    "INSERT INTO alarm_incidents (cluster, alarm, details, cleared_at) VALUES (:cluster, :alarm, '{}', now()) RETURNING id"
)
_OUTCOMES = text(
    """
    SELECT incident.closed_at IS NOT NULL AS planned, message.channel, message.sent_at, message.last_error,
        EXTRACT(EPOCH FROM message.sent_at - incident.raised_at)::float8 AS after_s
    FROM alarm_incidents AS incident LEFT JOIN alarm_messages AS message ON message.incident_id = incident.id
    WHERE incident.cluster = :cluster AND incident.id = :id ORDER BY message.channel
    """
)


@dataclass(frozen=True, slots=True)
class OpenMessage:
    """A message that must be sent to a channel, and how often that failed."""

    id: int
    channel: str
    kind: MessageKind
    attempts: int
    incident: Incident


@dataclass(frozen=True, slots=True)
class IncidentMessage:
    """A message of an incident and what became of it.

    `state` is due, waiting, sent, failing, parked or dropped. `sent_at` is when the
    channel first took it, `next_at` when it is sent or tried again. `failed_tries`,
    `failing_since` and `last_error` are about the failures since the channel last took
    it.
    """

    channel: str
    kind: MessageKind
    state: str
    created_at: datetime
    sent_at: datetime | None
    next_at: datetime | None
    failed_tries: int
    failing_since: datetime | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class UndeliveredMessages:
    """The messages that could not be sent for long. `parked` of them are not tried any
    more.
    """

    messages: int
    parked: int
    channels: Sequence[str]
    for_s: float
    last_error: str | None


@dataclass(frozen=True, slots=True)
class ChannelOutcome:
    """What became of a test on one channel: sent after so many seconds, failed with an
    error, or neither yet.
    """

    channel: str
    after_s: float | None
    error: str | None

    @property
    def is_known(self) -> bool:
        """Whether the message was sent or has failed."""
        return self.after_s is not None or self.error is not None


def open_incident(
    connection: Connection, cluster: str, alarm: str, details_json: str
) -> None:
    """Open an incident in the transaction that raises its alarm, or go on with the one
    that is not closed yet.
    """
    connection.execute(
        OPEN_OR_GO_ON, {"cluster": cluster, "alarm": alarm, "details": details_json}
    )


def clear_incident(connection: Connection, cluster: str, alarm: str) -> None:
    """Store, in the transaction that ends the alarm, that the alarm of the open
    incident is off.
    """
    connection.execute(CLEAR, {"cluster": cluster, "alarm": alarm})


class Incidents:
    """The incidents of one cluster, and their messages. Its methods raise
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster

    def make_all_due(self) -> None:
        """Make all open incidents due: this process may have other channels than those
        before it.
        """
        with self._engine.begin() as connection:
            connection.execute(_MAKE_DUE, {"cluster": self._cluster})

    def to_plan(self, connection: Connection) -> list[tuple[Incident, datetime]]:
        """Lock the incidents that are due until the transaction ends. Each comes with
        the database's time.
        """
        rows = connection.execute(
            _TO_PLAN, {"cluster": self._cluster, "most": MAX_INCIDENTS}
        )
        return [
            (
                _incident(row, row.id, frozenset(row.notified), _silence(row)),
                row.present,
            )
            for row in rows
        ]

    def store_plan(
        self, connection: Connection, incident: Incident, plan: NoticePlan
    ) -> None:
        """Write the messages of a plan, in the transaction that has read the
        incident.
        """
        for planned in plan.messages:
            message = {
                "incident_id": incident.id,
                "channel": planned.channel,
                "kind": planned.kind.value,
            }
            connection.execute(_WRITE, {"cluster": self._cluster} | message)
        next_look = {
            "id": incident.id,
            "look_again_at": plan.look_again_at,
            "closed": plan.closed,
        }
        connection.execute(_STORE_PLAN, next_look)
        if plan.closed:
            connection.execute(_END_REPEATS, {"id": incident.id})

    def due(self) -> list[OpenMessage]:
        """The messages that may be sent now, at most MAX_INCIDENTS; those with the
        fewest failures first.
        """
        with read_connection(self._engine) as connection:
            rows = list(
                connection.execute(
                    _DUE, {"cluster": self._cluster, "most": MAX_INCIDENTS}
                )
            )
        return [
            OpenMessage(
                row.id,
                row.channel,
                MessageKind(row.kind),
                row.attempts,
                _incident(row, row.incident_id),
            )
            for row in rows
        ]

    def messages_of_last(self, alarm: str) -> list[IncidentMessage]:
        """The messages of the alarm's last incident, open or closed, in the order in
        which they were planned.
        """
        with read_connection(self._engine) as connection:
            rows = list(
                connection.execute(
                    _OF_LAST_INCIDENT, {"cluster": self._cluster, "alarm": alarm}
                )
            )
        return [
            IncidentMessage(row.channel, MessageKind(row.kind), *row[2:])
            for row in rows
        ]

    def silence(self, alarm: str, ends_at: datetime, reason: str) -> None:
        """Send no message of an alarm until `ends_at`. Messages that are due then are
        sent after that.
        """
        parameters = {
            "cluster": self._cluster,
            "alarm": alarm,
            "ends_at": ends_at,
            "reason": reason,
        }
        with self._engine.begin() as connection:
            connection.execute(_SILENCE, parameters)
            connection.execute(_MAKE_DUE, {"cluster": self._cluster})

    def unsilence(self, alarm: str) -> bool:
        """End the silence of an alarm now. Returns False if there is none."""
        with self._engine.begin() as connection:
            ended = connection.execute(
                _UNSILENCE, {"cluster": self._cluster, "alarm": alarm}
            ).rowcount
            connection.execute(_MAKE_DUE, {"cluster": self._cluster})
        return bool(ended)

    def silences(self) -> dict[str, Silence]:
        """The alarms that are silenced now."""
        with read_connection(self._engine) as connection:
            rows = list(connection.execute(_SILENCES, {"cluster": self._cluster}))
        return {
            row.alarm: Silence(row.begun_at, row.ends_at, row.reason) for row in rows
        }

    def sent(self, message: OpenMessage, again_s: float | None) -> None:
        """Store that the channel has taken the message. With `again_s`, it is due again
        until its incident is over.
        """
        with self._engine.begin() as connection:
            connection.execute(_SENT, {"id": message.id, "again_s": again_s})
            # the channel works: what it did not take before is tried now
            if message.kind is MessageKind.TEST:
                connection.execute(
                    _REVIVE, {"cluster": self._cluster, "channel": message.channel}
                )

    def most_attempts(self, channel: str) -> int:
        """How often the channel has rejected the message that it rejected most often, of
        those that it rejects since it last took one.
        """
        with read_connection(self._engine) as connection:
            parameters = {"cluster": self._cluster, "channel": channel}
            return int(connection.execute(_MOST_ATTEMPTS, parameters).scalar_one())

    def failed(
        self, message: OpenMessage, error: str, again_s: float, give_up_s: float
    ) -> bool:
        """Store that the message could not be sent. All messages of the channel are due
        again in `again_s` seconds.

        Returns whether the message is parked: it has failed for longer than
        `give_up_s`. A test is tried once.
        """
        failure = {
            "id": message.id,
            "error": sanitize_and_truncate(error),
            "give_up_s": give_up_s,
        }
        later = {
            "cluster": self._cluster,
            "channel": message.channel,
            "again_s": again_s,
        }
        with self._engine.begin() as connection:
            parked = bool(connection.scalar(_FAILED, failure))
            connection.execute(_POSTPONE, later)
        return parked

    def undelivered(self, late_s: float) -> UndeliveredMessages:
        """The messages that are parked, and those that have failed for `late_s` seconds
        since the last silence of their alarm.
        """
        with read_connection(self._engine) as connection:
            row = connection.execute(
                _UNDELIVERED, {"cluster": self._cluster, "late_s": late_s}
            ).one()
        return UndeliveredMessages(
            row.messages, row.parked, row.channels or (), row.for_s, row.last_error
        )

    def drop_parked(self) -> int:
        """Give up the parked messages, and the resolutions that would follow them.
        Returns their number.
        """
        with self._engine.begin() as connection:
            dropped = connection.execute(_DROP, {"cluster": self._cluster}).rowcount
            # the task that sends messages also ends the alarm about them
            connection.execute(_MAKE_DUE, {"cluster": self._cluster})
        return dropped

    def ask_test(self) -> int:
        """Ask for a test message to each channel of the workers. Returns the test's
        id.
        """
        with self._engine.begin() as connection:
            parameters = {"cluster": self._cluster, "alarm": TEST}
            return int(connection.execute(_ASK_TEST, parameters).scalar_one())

    def test_outcomes(self, test_id: int) -> list[ChannelOutcome] | None:
        """What became of a test, by channel; None while no worker has taken it, empty
        if there is no channel.
        """
        with read_connection(self._engine) as connection:
            rows = list(
                connection.execute(_OUTCOMES, {"cluster": self._cluster, "id": test_id})
            )
        if not any(row.planned for row in rows):
            return None
        return [
            ChannelOutcome(row.channel, row.after_s, row.last_error)
            for row in rows
            if row.channel is not None
        ]


def _silence(row: Any) -> Silence | None:
    if row.silent_from is None:
        return None
    return Silence(row.silent_from, row.silent_until)


def _incident(
    row: Any,
    incident_id: int,
    notified_channels: frozenset[str] = frozenset(),
    silence: Silence | None = None,
) -> Incident:
    return Incident(
        id=incident_id,
        key=row.key,
        alarm=row.alarm,
        raised_at=row.raised_at,
        cleared_at=row.cleared_at,
        raises=row.raises,
        details=row.details,
        notified_channels=notified_channels,
        silence=silence,
    )
