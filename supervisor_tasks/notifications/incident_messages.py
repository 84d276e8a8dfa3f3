"""An alarm's incident and the messages about it. Pure.

An incident begins when its alarm is raised, and ends when the alarm has been off for
`stable_s` (delivery_rules.py). An alarm that goes off and on again within this time is
one incident.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

TEST = "test"  # stands in the place of an alarm's name


class MessageKind(StrEnum):
    """What a message is about."""

    RAISED = "raised"
    RESOLVED = "resolved"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Silence:
    """A time in which an operator wants no message about an alarm. Its end is not in
    it.
    """

    begun_at: datetime
    ends_at: datetime
    reason: str = ""

    def covers(self, moment: datetime) -> bool:
        """Whether a moment lies in it."""
        return self.begun_at <= moment < self.ends_at


@dataclass(frozen=True, slots=True)
class Incident:
    """An incident. `alarm` is the alarm's name, or TEST. `notified_channels` are the
    channels that have a message about its raise. `silence` is the alarm's last one.
    """

    id: int
    key: str
    alarm: str
    raised_at: datetime
    cleared_at: datetime | None = None  # None: the alarm is on
    raises: int = 1
    details: Mapping[str, Any] = field(default_factory=dict)
    notified_channels: frozenset[str] = frozenset()
    silence: Silence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message, with all that a channel may show of it.

    `key` is the same each time the message is sent: a receiver that gets it twice can
    drop one.
    """

    key: str
    kind: MessageKind
    cluster: str
    alarm: str
    critical: bool
    cause: str
    advice: str
    details: Mapping[str, Any]
    raised_at: datetime
    cleared_at: datetime | None
    raises: int
    runbook_url: str  # the alarm's page

    @property
    def incident_key(self) -> str:
        """The key of the incident, without the message's kind."""
        return self.key.removesuffix(f"-{self.kind}")

    def key_of(self, kind: MessageKind) -> str:
        """The key of another message of the same incident."""
        return f"{self.incident_key}-{kind}"


def page_of(runbook_url: str, alarm: str) -> str:
    """Return where the page of an alarm is."""
    return f"{runbook_url.rstrip('/')}/{alarm}.md"
