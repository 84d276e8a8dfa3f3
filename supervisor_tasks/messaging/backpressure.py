"""Backpressure: no message is sent to a queue that no worker works off, as Redis would grow without end.

The only place that reads how many messages wait in a queue.
"""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import structlog
from celery import Celery
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

log = structlog.get_logger()

COUNT_EVERY_S = 1.0
BUSY = 16  # messages in a queue are more than a worker takes at a time: what was sent before may be among them


def queue_length(channel: Any, queue: str) -> int:
    """How many messages wait in the queue. Raises what the broker's client raises."""
    return int(channel._size(queue))


def queue_lengths(connect: Callable[[], AbstractContextManager[Any]], queues: Iterable[str]) -> int:
    """How many messages wait in these queues together, by a connection of Kombu; none while the broker does not answer."""
    try:
        with connect() as connection:
            return sum(queue_length(connection.default_channel, queue) for queue in queues)
    except (KombuError, RedisError, OSError):
        return 0


class Limit:
    """At most so many messages in a queue. The log says once that a queue is full, and once that it is not any more."""

    def __init__(self, most: int, sender: str) -> None:
        self._most = most
        self._sender = sender
        self._full: set[str] = set()

    def allows(self, queue: str, length: int) -> bool:
        """Whether one more message may be sent to a queue of this length."""
        if length < self._most:
            if queue in self._full:
                self._full.remove(queue)
                log.info("messages_go_on", sender=self._sender, queue=queue)
            return True
        if queue not in self._full:
            self._full.add(queue)
            log.warning("messages_held_back", sender=self._sender, queue=queue, waiting=length)
        return False


class Backpressure:
    """Holds back what is sent by this process: a queue is counted once a second, and in between what is sent adds to the
    count. Threads may share it.
    """

    def __init__(self, app: Celery, most: int, sender: str) -> None:
        self._app = app
        self._limit = Limit(most, sender)
        self._lock = threading.Lock()
        self._counted: dict[str, tuple[float, int]] = {}

    def allows_one_more(self, queue: str) -> bool:
        """Whether one more message may be sent; also while the broker does not answer."""
        with self._lock:
            counted_s, length = self._counted.get(queue, (float("-inf"), 0))
            if time.monotonic() - counted_s >= COUNT_EVERY_S:
                counted_s, length = time.monotonic(), self._length(queue)
            self._counted[queue] = (counted_s, length + 1)
            return self._limit.allows(queue, length)

    def is_busy(self, queue: str) -> bool:
        """Whether more messages wait there than a worker takes at a time."""
        return self._length(queue) > BUSY

    def _length(self, queue: str) -> int:
        return queue_lengths(self._app.connection_or_acquire, [queue])
