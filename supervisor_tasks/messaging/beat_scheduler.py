"""Beat's clock: it goes by the time that has passed, not by the time of day, and it does not run ahead of the workers.

Celery's own reads the time of day: one that is set back by an hour keeps beat silent for an hour, and messages that expire are
thrown away by a worker whose clock is ahead. Here nothing expires; instead no more is sent to a queue that is not worked off.
"""

import time
from typing import Any

import structlog
from celery import Celery
from celery.beat import ScheduleEntry, Scheduler, SchedulingError
from kombu.connection import Connection
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from supervisor_tasks.broker import Outage, connected

log = structlog.get_logger()

MOST_WAITING = 500  # messages in a queue; a tick costs a worker milliseconds


class BeatScheduler(Scheduler):  # type: ignore[misc]  # Celery has no types
    """Beat's scheduler. What it cannot send is dropped: it is sent again at its next time. It keeps no file."""

    def __init__(self, app: Celery, *args: Any, **kwargs: Any) -> None:
        self._outage = Outage()
        self._due_s: dict[str, float] = {}
        self._held_back: set[str] = set()
        super().__init__(app, *args, **kwargs)

    def setup_schedule(self) -> None:
        """What is due and how often."""
        self.merge_inplace(self.app.conf.beat_schedule)

    def tick(self, **_: Any) -> float:
        """Send all that is due; the seconds until something is due again."""
        for name, entry in self.schedule.items():
            if time.monotonic() >= self._due_s.get(name, 0.0):
                self._due_s[name] = time.monotonic() + entry.schedule.run_every.total_seconds()
                self.apply_entry(entry, producer=self.producer)
        return max(min(self._due_s.values(), default=1.0) - time.monotonic(), 0.0)

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Send a message, unless so many wait that nobody can be at work there."""
        try:
            if self._is_worked_off(entry):
                self.apply_async(entry, producer=producer, advance=False)
        except (SchedulingError, KombuError, RedisError, OSError) as error:
            self._outage.goes_on(error)
        else:
            self._outage.is_over()

    def _is_worked_off(self, entry: ScheduleEntry) -> bool:
        queue = self.app.amqp.router.route({}, entry.task)["queue"].name
        channel: Any = connected(self.connection, self._outage).default_channel
        waiting = int(channel.client.llen(queue))
        if waiting >= MOST_WAITING and queue not in self._held_back:
            self._held_back.add(queue)
            log.warning("clock_held_back", queue=queue, waiting=waiting)
        elif waiting < MOST_WAITING and queue in self._held_back:
            self._held_back.remove(queue)
            log.info("clock_goes_on", queue=queue)
        return queue not in self._held_back

    def _ensure_connected(self) -> Connection:
        return connected(self.connection, self._outage)
