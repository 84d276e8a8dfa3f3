"""Which messages an incident needs, and when. Pure.

* Each channel gets one message about the raise of an incident. In the quiet hours, only
  a critical alarm is sent; any other waits for their end. If the alarm is over by then,
  no message is sent.
* The resolution is sent when the alarm has been off for `stable_s`, to the channels
  that have got the raise.
* While an operator has silenced an alarm, critical or not, no message about it is sent,
  as in the quiet hours.
* A test is sent at once.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from supervisor_tasks.notifications.incident_messages import TEST, Incident, MessageKind

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class QuietHours:
    """The hours of each day in which only critical alarms are sent. An end that is not
    after the beginning is on the next day.
    """

    begin: time
    end: time
    zone: str = "UTC"

    def end_after(self, moment: datetime) -> datetime | None:
        """The end of the quiet hours in which this moment lies; None when it lies in
        none.
        """
        today = moment.astimezone(ZoneInfo(self.zone)).date()
        for day in (today - DAY, today):
            begin = self._at(day, self.begin)
            end_day = day
            if self.end <= self.begin:
                end_day = day + DAY
            end = self._at(end_day, self.end)
            if begin <= moment < end:
                return end
        return None

    def _at(self, day: date, hour: time) -> datetime:
        return datetime.combine(day, hour, ZoneInfo(self.zone)).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Policy:
    """When the site wants its messages."""

    quiet_hours: QuietHours | None = None
    stable_s: float = 300.0

    def quiet_until(self, moment: datetime, critical: bool) -> datetime | None:
        """Until when an alarm waits that could be sent at this moment; None when it
        does not wait.
        """
        if critical or self.quiet_hours is None:
            return None
        return self.quiet_hours.end_after(moment)


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """A message to write for a channel. It is due at once."""

    channel: str
    kind: MessageKind


@dataclass(frozen=True, slots=True)
class NoticePlan:
    """The new messages of an incident; whether it is over; and when to look again, None
    for after its next change.
    """

    messages: tuple[MessageRequest, ...] = ()
    closed: bool = False
    look_again_at: datetime | None = None


def plan(
    incident: Incident,
    channels: Collection[str],
    critical: bool,
    policy: Policy,
    now: datetime,
) -> NoticePlan:
    """Return what must happen to an incident now."""
    if incident.alarm == TEST:
        return NoticePlan(_messages(MessageKind.TEST, channels), closed=True)
    quiet_until = _quiet_until(incident, now, critical, policy)
    worth_sending = _is_worth_sending(incident, critical, policy)
    new_channels = list[str]()
    if quiet_until is None and worth_sending:
        new_channels = [
            channel for channel in channels if channel not in incident.notified_channels
        ]
    raised = _messages(MessageKind.RAISED, new_channels)
    if incident.cleared_at is None:
        return NoticePlan(raised, look_again_at=quiet_until)
    stable_at = incident.cleared_at + timedelta(seconds=policy.stable_s)
    if now < stable_at:
        return NoticePlan(
            raised, look_again_at=min(filter(None, (quiet_until, stable_at)))
        )
    if quiet_until is not None and worth_sending:
        return NoticePlan(look_again_at=quiet_until)
    resolved = _messages(
        MessageKind.RESOLVED, [*sorted(incident.notified_channels), *new_channels]
    )
    return NoticePlan((*raised, *resolved), closed=True)


def _messages(
    kind: MessageKind, channels: Collection[str]
) -> tuple[MessageRequest, ...]:
    return tuple(MessageRequest(channel, kind) for channel in channels)


def _quiet_until(
    incident: Incident, moment: datetime, critical: bool, policy: Policy
) -> datetime | None:
    """Return until when no message about an incident is sent at this moment; None when
    it can be sent.
    """
    silence = incident.silence
    silent_until = None
    if silence is not None and silence.covers(moment):
        silent_until = silence.ends_at
    return max(
        filter(None, (silent_until, policy.quiet_until(moment, critical))), default=None
    )


def _is_worth_sending(incident: Incident, critical: bool, policy: Policy) -> bool:
    """Return whether the incident did not begin and end in the same quiet hours or
    silence.
    """
    quiet_until = _quiet_until(incident, incident.raised_at, critical, policy)
    if quiet_until is None or incident.cleared_at is None:
        return True
    return incident.cleared_at >= quiet_until
