"""Beat's scheduler: every 0.8 s, it reads from the ledger in one query which tasks are
due, and sends their messages.

Celery's own scheduler uses the time of day: after an operator sets the clock back by an
hour, it sends nothing for an hour. This scheduler uses the time that has passed, and
sends nothing to a queue that no worker serves.
"""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import structlog
from celery import Celery
from celery.beat import ScheduleEntry, Scheduler, SchedulingError
from kombu.connection import Connection
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from plugins.probes.progress import LOOP
from supervisor_tasks.errors import TransientError
from supervisor_tasks.messaging.backpressure import Limit, queue_length
from supervisor_tasks.messaging.consumer import OutageLog, connected
from supervisor_tasks.messaging.queues import TASKS

log = structlog.get_logger()

Waiting = Callable[[], Mapping[str, int]]  # how many messages wait in each queue
# Returns the tasks that are due, each with about the number of seconds between two
# messages.
Question = Callable[[Waiting], Mapping[str, float]]

# A worker must act within a second of an operator's decision: 0.2 s are left for the
# messages and the work.
ASKED_EVERY_S = 0.8
# messages in a queue; a run that finds nothing costs a worker milliseconds
MAX_WAITING_BEAT_MESSAGES = 500


class BeatScheduler(Scheduler):  # type: ignore[misc]  # Celery has no types
    """Sends a message for each task that the question returns. It keeps no file.

    It drops a message when the broker fails; the task will be due again.
    """

    tasks: Collection[str] = ()

    def __init__(self, app: Celery, *args: Any, **kwargs: Any) -> None:
        self._outage = OutageLog()
        self._asked_s = float("-inf")
        self._sent_s: dict[str, float] = {}
        self._limit = Limit(MAX_WAITING_BEAT_MESSAGES, "beat")
        self._ledger_unavailable_since_s: float | None = None
        super().__init__(app, *args, **kwargs)
        self._question = self.open_question()

    def open_question(self) -> Question:
        """Return the query of the ledger; the subclass for beat implements this. Raises
        NotImplementedError here; a retry does not help.
        """
        raise NotImplementedError

    def setup_schedule(self) -> None:
        """Give Celery the tasks that can be due."""
        self.merge_inplace(
            {
                name: {"task": f"{TASKS}.{name}", "schedule": ASKED_EVERY_S}
                for name in self.tasks
            }
        )

    def tick(self, **_: Any) -> float:
        """Send messages for the tasks that are due; returns the seconds until the next
        query.
        """
        LOOP.completed()
        if time.monotonic() - self._asked_s >= ASKED_EVERY_S:
            self._asked_s = time.monotonic()
            self._send_due()
        return max(self._asked_s + ASKED_EVERY_S - time.monotonic(), 0.0)

    def _send_due(self) -> None:
        for name, every_s in self._due().items():
            since_last_s = time.monotonic() - self._sent_s.get(name, float("-inf"))
            if since_last_s < every_s - ASKED_EVERY_S / 2:
                continue
            self._sent_s[name] = time.monotonic()
            self.apply_entry(self.schedule[name], producer=self.producer)

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Send a message, unless so many messages wait that no worker can be serving
        the queue.
        """
        try:
            if self._queue_has_room(entry):
                self.apply_async(entry, producer=producer, advance=False)
        except (SchedulingError, KombuError, RedisError, OSError) as error:
            self._outage.record_failure(error)
        else:
            self._outage.record_recovery()

    def _due(self) -> Mapping[str, float]:
        """Return the tasks that are due; none while the ledger does not answer, because
        no worker could work either.
        """
        try:
            every_s_of_task = self._question(self._waiting)
        except TransientError as error:
            if self._ledger_unavailable_since_s is None:
                self._ledger_unavailable_since_s = time.monotonic()
                log.warning("ledger_disconnected", error=str(error))
            return {}
        if self._ledger_unavailable_since_s is not None:
            log.info(
                "ledger_reconnected",
                unavailable_s=round(
                    time.monotonic() - self._ledger_unavailable_since_s, 1
                ),
            )
            self._ledger_unavailable_since_s = None
        return every_s_of_task

    def _waiting(self) -> dict[str, int]:
        """Return how many messages wait in each queue; nothing while the broker does
        not answer.
        """
        if not self.connection.connected:
            return {}  # the next message connects, and waits for the broker
        try:
            channel: Any = self.connection.default_channel
            return {name: queue_length(channel, name) for name in self.app.amqp.queues}
        except (KombuError, RedisError, OSError):
            return {}

    def _queue_has_room(self, entry: ScheduleEntry) -> bool:
        queue = self.app.amqp.router.route({}, entry.task)["queue"].name
        channel: Any = connected(self.connection, self._outage).default_channel
        return self._limit.allows(queue, queue_length(channel, queue))

    def _ensure_connected(self) -> Connection:
        return connected(self.connection, self._outage)
