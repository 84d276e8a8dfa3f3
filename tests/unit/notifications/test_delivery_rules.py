"""What happens to an alarm, and which messages follow: told step by step, as the notify
task plans them.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta

import pytest

from supervisor_tasks.notifications.delivery_rules import (
    MessageRequest,
    NoticePlan,
    Policy,
    QuietHours,
    plan,
)
from supervisor_tasks.notifications.incident_messages import (
    TEST,
    Incident,
    MessageKind,
    Silence,
)

STABLE_S = 300.0
NIGHT = QuietHours(time(22), time(7))
NIGHTLY = Policy(NIGHT, STABLE_S)
BOTH = ("mail ops@example.org", "webhook")


def at(text: str) -> datetime:
    """A moment of a day in November, the 22nd if the text has no day."""
    day, _, hour = text.rpartition(" ")
    return datetime.fromisoformat(f"2026-11-{day or '22'}T{hour}+00:00")


@dataclass
class Story:
    """An alarm that goes on and off, and a notify task that comes when the last plan or
    a change says so.
    """

    critical: bool = False
    policy: Policy = NIGHTLY
    channels: tuple[str, ...] = ("webhook",)
    told: list[str] = field(default_factory=list)
    incident: Incident | None = None
    number: int = 0
    due_at: datetime | None = None
    silence: Silence | None = None

    def happens(self, what: str, when: datetime) -> None:
        self.pass_time(when)
        if what == "on":
            self._raised(when)
        elif self.incident is not None:
            self.incident = replace(self.incident, cleared_at=when)
        self._plan(when)

    def pass_time(self, until: datetime) -> None:
        while self.due_at is not None and self.due_at <= until:
            self._plan(self.due_at)

    def _raised(self, when: datetime) -> None:
        if self.incident is None:
            self.number += 1
            self.incident = Incident(
                self.number, f"key-{self.number}", "wallet_empty", when
            )
        else:
            self.incident = replace(
                self.incident, cleared_at=None, raises=self.incident.raises + 1
            )

    def _plan(self, now: datetime) -> None:
        if self.incident is None:
            return
        self.incident = replace(self.incident, silence=self.silence)
        made = plan(self.incident, self.channels, self.critical, self.policy, now)
        self.told += [f"{now:%H:%M} {message.kind}" for message in made.messages]
        told = {
            message.channel
            for message in made.messages
            if message.kind is MessageKind.RAISED
        }
        notified = self.incident.notified_channels | told
        self.incident = (
            None if made.closed else replace(self.incident, notified_channels=notified)
        )
        assert made.look_again_at is None or made.look_again_at > now
        self.due_at = made.look_again_at


TOLD = [
    ("on_and_off", "on 12:00, off 13:00", ["12:00 raised", "13:05 resolved"]),
    ("stays_on", "on 12:00", ["12:00 raised"]),
    (
        "flaps_within_the_settling",
        "on 12:00, off 12:01, on 12:03, off 12:05, on 12:06",
        ["12:00 raised"],
    ),
    (
        "flaps_and_ends",
        "on 12:00, off 12:01, on 12:03, off 12:05",
        ["12:00 raised", "12:10 resolved"],
    ),
    (
        "comes_again_after_the_settling",
        "on 12:00, off 12:01, on 12:07, off 12:08",
        ["12:00 raised", "12:06 resolved", "12:07 raised", "12:13 resolved"],
    ),
    (
        "goes_on_at_the_moment_of_the_settling",
        "on 12:00, off 12:01, on 12:06",
        ["12:00 raised", "12:06 resolved", "12:06 raised"],
    ),
    ("begins_and_ends_in_the_quiet_hours", "on 23:00, off 23:30", []),
    ("begins_in_the_quiet_hours_and_stays", "on 23:00", ["07:00 raised"]),
    (
        "begins_in_the_quiet_hours_and_ends_after_them",
        "on 23:00, off 23 08:00",
        ["07:00 raised", "08:05 resolved"],
    ),
    (
        "begins_before_them_and_ends_in_them",
        "on 21:00, off 23:00",
        ["21:00 raised", "07:00 resolved"],
    ),
    ("flaps_over_their_end", "on 23:00, off 23 06:58, on 23 07:01", ["07:01 raised"]),
    ("ends_just_before_their_end", "on 23:00, off 23 06:58", []),
    (
        "begins_and_ends_twice_in_them",
        "on 23:00, off 23:10, on 23 02:00, off 23 02:10",
        [],
    ),
    (
        "is_cleared_just_before_them",
        "on 21:00, off 21:58",
        ["21:00 raised", "07:00 resolved"],
    ),
]


@pytest.mark.parametrize(
    ("changes", "expected"), [case[1:] for case in TOLD], ids=[case[0] for case in TOLD]
)
def test_plan__changes_of_an_alarm__are_these_messages(
    changes: str, expected: list[str]
) -> None:
    story = played(Story(), changes)
    assert story.told == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ("on 23:00, off 23:30", ["23:00 raised", "23:35 resolved"]),
        ("on 21:00, off 23:00", ["21:00 raised", "23:05 resolved"]),
        (
            "on 23:00, off 23:01, on 23:02, off 23:03",
            ["23:00 raised", "23:08 resolved"],
        ),
    ],
)
def test_plan__critical_alarm__does_not_wait_for_the_end_of_the_quiet_hours(
    changes: str, expected: list[str]
) -> None:
    assert played(Story(critical=True), changes).told == expected


def test_plan__several_channels__one_message_each() -> None:
    story = played(
        Story(channels=BOTH, policy=Policy(None, 0.0)), "on 12:00, off 12:10"
    )
    assert story.told == [
        "12:00 raised",
        "12:00 raised",
        "12:10 resolved",
        "12:10 resolved",
    ]


def test_plan__channel_that_came_later__is_told_of_what_is_still_on_and_of_its_end() -> (
    None
):
    incident = Incident(
        1, "key", "wallet_empty", at("12:00"), notified_channels=frozenset({"webhook"})
    )
    made = plan(incident, BOTH, False, Policy(), at("13:00"))
    assert made == NoticePlan((MessageRequest(BOTH[0], MessageKind.RAISED),))


def test_plan__channel_that_is_gone__still_gets_the_resolution_of_what_it_was_told() -> (
    None
):
    incident = Incident(
        1,
        "key",
        "wallet_empty",
        at("12:00"),
        at("12:30"),
        notified_channels=frozenset({"slack"}),
    )
    made = plan(incident, (), False, Policy(stable_s=0.0), at("13:00"))
    assert made == NoticePlan(
        (MessageRequest("slack", MessageKind.RESOLVED),), closed=True
    )


def test_plan__not_run_while_the_alarm_came_and_went__sends_both() -> None:
    incident = Incident(1, "key", "wallet_empty", at("12:00"), at("12:01"))
    made = plan(incident, ("webhook",), False, Policy(NIGHT), at("13:00"))
    kinds = [message.kind for message in made.messages]
    assert (kinds, made.closed) == ([MessageKind.RAISED, MessageKind.RESOLVED], True)


def test_plan__not_run_until_quiet_hours__waits_for_their_end_and_sends_both() -> None:
    incident = Incident(1, "key", "wallet_empty", at("21:00"), at("21:01"))
    policy = Policy(NIGHT)
    assert plan(incident, ("webhook",), False, policy, at("22:30")) == NoticePlan(
        look_again_at=at("23 07:00")
    )
    assert (
        len(plan(incident, ("webhook",), False, policy, at("23 07:00")).messages) == 2
    )


def test_plan__not_run_for_a_day__sends_an_alarm_of_two_nights() -> None:
    incident = Incident(1, "key", "wallet_empty", at("23:00"), at("23 23:30"))
    made = plan(incident, ("webhook",), False, Policy(NIGHT), at("24 08:00"))
    assert len(made.messages) == 2


def test_plan__test__is_told_to_each_channel_at_any_hour() -> None:
    made = plan(
        Incident(1, "key", TEST, at("23:00"), at("23:00")),
        BOTH,
        True,
        Policy(NIGHT),
        at("23:00"),
    )
    assert made == NoticePlan(
        tuple(MessageRequest(channel, MessageKind.TEST) for channel in BOTH),
        closed=True,
    )


@pytest.mark.parametrize(
    ("hours", "moment", "expected"),
    [
        (NIGHT, "2026-11-22T21:59", None),
        (NIGHT, "2026-11-22T22:00", "2026-11-23T07:00"),
        (NIGHT, "2026-11-23T06:59", "2026-11-23T07:00"),
        (NIGHT, "2026-11-23T07:00", None),
        (QuietHours(time(12), time(13)), "2026-11-22T12:30", "2026-11-22T13:00"),
        (QuietHours(time(12), time(13)), "2026-11-22T23:30", None),
        (
            QuietHours(time(22), time(7), "Europe/Zurich"),
            "2026-11-22T21:00",
            "2026-11-23T06:00",
        ),
        (
            QuietHours(time(22), time(7), "Europe/Zurich"),
            "2026-07-22T20:00",
            "2026-07-23T05:00",
        ),
        # the night in which the clocks go back
        (
            QuietHours(time(22), time(7), "Europe/Zurich"),
            "2026-10-24T20:00",
            "2026-10-25T06:00",
        ),
        (
            QuietHours(time(0), time(7), "Asia/Tokyo"),
            "2026-11-21T15:00",
            "2026-11-21T22:00",
        ),
    ],
)
def test_quiet_hours__end_after__is_by_the_clock_of_the_site(
    hours: QuietHours, moment: str, expected: str | None
) -> None:
    found = hours.end_after(datetime.fromisoformat(moment).replace(tzinfo=UTC))
    assert found == (
        None
        if expected is None
        else datetime.fromisoformat(expected).replace(tzinfo=UTC)
    )


def played(story: Story, changes: str) -> Story:
    for change in changes.split(", "):
        what, _, when = change.partition(" ")
        story.happens(what, at(when))
    story.pass_time(at("22 00:00") + timedelta(days=2))
    return story


SILENCE = Silence(at("12:30"), at("14:00"), "SLURM is upgraded")
SILENCED = [
    ("begins_in_it_and_stays_on", "on 13:00", ["14:00 raised"]),
    ("begins_and_ends_in_it", "on 13:00, off 13:10", []),
    (
        "begins_before_it_and_ends_in_it",
        "on 12:00, off 13:00",
        ["12:00 raised", "14:00 resolved"],
    ),
    (
        "begins_in_it_and_ends_after_it",
        "on 13:00, off 15:00",
        ["14:00 raised", "15:05 resolved"],
    ),
    ("begins_at_its_end", "on 14:00", ["14:00 raised"]),
    ("ends_in_it_and_begins_again", "on 12:00, off 13:00, on 13:30", ["12:00 raised"]),
]


@pytest.mark.parametrize("critical", [False, True])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [case[1:] for case in SILENCED],
    ids=[case[0] for case in SILENCED],
)
def test_plan__silenced_alarm__is_told_when_that_is_over(
    changes: str, expected: list[str], critical: bool
) -> None:
    story = Story(critical, silence=SILENCE)
    for change in changes.split(", "):
        what, _, when = change.partition(" ")
        story.happens(what, at(when))
    story.pass_time(at("21:00"))
    assert story.told == expected


def test_plan__silence_ends_in_the_quiet_hours__waits_for_their_end() -> None:
    story = Story(silence=Silence(at("20:00"), at("23:00")))
    story.happens("on", at("21:00"))
    story.pass_time(at("23 12:00"))
    assert story.told == ["07:00 raised"]
