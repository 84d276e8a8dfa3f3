"""Which messages an incident needs, and when. Pure.

* A raise is told to each channel, once for an incident. In the quiet hours, only a critical alarm is told; any other
  waits for their end. If it is over by then, nothing is told.
* A resolution is told when the alarm has been off for `settle_s`, to the channels that were told of the raise.
* While an operator has silenced an alarm, critical or not, nothing of it is told, as in the quiet hours.
* A test is told at once.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from supervisor_tasks.notifications.incident_messages import TEST, Incident, MessageKind

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class QuietHours:
    """The hours of each day in which only critical alarms are told. An end that is not after the beginning is on the
    next day.
    """

    begin: time
    end: time
    zone: str = "UTC"

    def end_after(self, moment: datetime) -> datetime | None:
        """The end of the quiet hours in which this moment lies; None when it lies in none."""
        today = moment.astimezone(ZoneInfo(self.zone)).date()
        for day in (today - DAY, today):
            begin = self._at(day, self.begin)
            end = self._at(day + DAY if self.end <= self.begin else day, self.end)
            if begin <= moment < end:
                return end
        return None

    def _at(self, day: date, hour: time) -> datetime:
        return datetime.combine(day, hour, ZoneInfo(self.zone)).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Policy:
    """How the site wants to be told."""

    quiet_hours: QuietHours | None = None
    settle_s: float = 300.0

    def quiet_until(self, moment: datetime, critical: bool) -> datetime | None:
        """Until when an alarm waits if it could be told at this moment; None when it does not wait."""
        return None if critical or self.quiet_hours is None else self.quiet_hours.end_after(moment)


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """A message to write for a channel. It is due at once."""

    channel: str
    kind: MessageKind


@dataclass(frozen=True, slots=True)
class NoticePlan:
    """The new messages of an incident; whether it is over; and when to look again, None for after its next change."""

    messages: tuple[MessageRequest, ...] = ()
    closed: bool = False
    look_again_at: datetime | None = None


def plan(incident: Incident, channels: Collection[str], critical: bool, policy: Policy, now: datetime) -> NoticePlan:
    """Return what must happen to an incident now."""
    if incident.alarm == TEST:
        return NoticePlan(tuple(MessageRequest(channel, MessageKind.TEST) for channel in channels), closed=True)
    quiet_until = _quiet_until(incident, now, critical, policy)
    raised = _raises(incident, channels, critical, policy) if quiet_until is None else ()
    if incident.cleared_at is None:
        return NoticePlan(raised, look_again_at=quiet_until)
    settled_at = incident.cleared_at + timedelta(seconds=policy.settle_s)
    if now < settled_at:
        return NoticePlan(raised, look_again_at=min(filter(None, (quiet_until, settled_at))))
    if quiet_until is not None and _is_worth_telling(incident, critical, policy):
        return NoticePlan(look_again_at=quiet_until)
    told = [*sorted(incident.told), *(planned.channel for planned in raised)]
    resolved = tuple(MessageRequest(channel, MessageKind.RESOLVED) for channel in told)
    return NoticePlan((*raised, *resolved), closed=True)


def _quiet_until(incident: Incident, moment: datetime, critical: bool, policy: Policy) -> datetime | None:
    """Return until when nothing is told of an incident at this moment; None when it can be told."""
    silence = incident.silence
    silent_until = silence.ends_at if silence is not None and silence.covers(moment) else None
    return max(filter(None, (silent_until, policy.quiet_until(moment, critical))), default=None)


def _raises(
    incident: Incident, channels: Collection[str], critical: bool, policy: Policy
) -> tuple[MessageRequest, ...]:
    if not _is_worth_telling(incident, critical, policy):
        return ()
    return tuple(MessageRequest(channel, MessageKind.RAISED) for channel in channels if channel not in incident.told)


def _is_worth_telling(incident: Incident, critical: bool, policy: Policy) -> bool:
    """Return whether the incident did not begin and end in the same quiet hours or silence."""
    quiet_until = _quiet_until(incident, incident.raised_at, critical, policy)
    return quiet_until is None or incident.cleared_at is None or incident.cleared_at >= quiet_until
