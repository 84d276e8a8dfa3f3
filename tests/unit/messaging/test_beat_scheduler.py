"""Beat's scheduler: when it asks what is due, and when it sends a message for it."""

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.beat import ScheduleEntry

from supervisor_tasks.messaging import beat_scheduler
from supervisor_tasks.messaging.beat_scheduler import (
    ASKED_EVERY_S,
    BeatScheduler,
    Question,
)
from tests.support.clock import Clock

ACTS_WITHIN_S = 1.0  # of what an operator decides


class SentMessages(BeatScheduler):
    """Writes down the tasks that it would send a message for."""

    tasks = ("report", "sweep")
    clock: Clock
    due: dict[str, float]
    sent: list[tuple[str, float]]
    asked = 0

    def open_question(self) -> Question:
        def question(_: object) -> dict[str, float]:
            self.asked += 1
            return self.due

        return question

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:  # noqa: ARG002
        self.sent.append((entry.name, round(self.clock(), 1)))

    @property
    def producer(self) -> None:
        """There is no broker."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    shown = Clock()
    shown.now_s = 0.0
    monkeypatch.setattr(beat_scheduler, "time", SimpleNamespace(monotonic=shown))
    return shown


@pytest.fixture
def scheduler(clock: Clock) -> SentMessages:
    made = SentMessages(Celery("test", broker="memory://"))
    made.clock, made.sent = clock, []
    return made


def run_until(scheduler: SentMessages, clock: Clock, end_s: float) -> None:
    while clock.now_s <= end_s:
        clock.now_s += scheduler.tick() or 0.01


def test_tick__called_again_and_again__asks_often_enough_for_an_operator(
    scheduler: SentMessages, clock: Clock
) -> None:
    scheduler.due = {}
    for tenth in range(80):
        clock.now_s = tenth / 10
        scheduler.tick()
    assert scheduler.asked == 10
    assert ASKED_EVERY_S < ACTS_WITHIN_S


@pytest.mark.parametrize(
    ("every_s", "sent_s"),
    [
        (1.0, [0.0, 0.8, 1.6, 2.4, 3.2, 4.0, 4.8]),
        (2.0, [0.0, 1.6, 3.2, 4.8]),
        (5.0, [0.0, 4.8]),
    ],
)
def test_tick__task_stays_due__is_sent_at_the_question_nearest_to_its_interval(
    scheduler: SentMessages, clock: Clock, every_s: float, sent_s: list[float]
) -> None:
    scheduler.due = {"report": every_s}
    run_until(scheduler, clock, 5.0)
    assert scheduler.sent == [("report", second) for second in sent_s]


def test_tick__another_task_becomes_due__is_sent_with_the_next_question(
    scheduler: SentMessages, clock: Clock
) -> None:
    scheduler.due = {"report": 5.0}
    run_until(scheduler, clock, 1.0)
    scheduler.due = {"report": 5.0, "sweep": 10.0}
    run_until(scheduler, clock, 2.0)
    assert scheduler.sent == [("report", 0.0), ("sweep", 1.6)]
