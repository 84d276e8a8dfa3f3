"""Backpressure: the supervisor sends no message to a queue that no worker serves,
because Redis would grow without end.

Only this module reads how many messages wait in a queue.
"""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import structlog
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

log = structlog.get_logger()

COUNT_EVERY_S = 1.0
# a worker takes fewer messages at a time: with more in the queue, earlier ones may
# still wait
BACKLOG_MESSAGES = 16

# makes a connection of Kombu, or lends one
Connect = Callable[[], AbstractContextManager[Any]]


def queue_length(channel: Any, queue: str) -> int:
    """Return how many messages wait in the queue. Raises the errors of the broker's
    client, when the broker does not answer; a retry helps.
    """
    return int(channel._size(queue))


def queue_lengths(connect: Connect, queues: Iterable[str]) -> int:
    """Return how many messages wait in these queues together; 0 while the broker does
    not answer.
    """
    try:
        with connect() as connection:
            return sum(
                queue_length(connection.default_channel, queue) for queue in queues
            )
    except (KombuError, RedisError, OSError):
        return 0


class Limit:
    """Allows `most` messages in a queue. Logs once when a queue is full, and once when
    it has room again.
    """

    def __init__(self, most: int, sender: str) -> None:
        self._most = most
        self._sender = sender
        self._full: set[str] = set()

    def allows(self, queue: str, length: int) -> bool:
        """Return whether the sender may send one more message to a queue of this
        length.
        """
        if length < self._most:
            if queue in self._full:
                self._full.remove(queue)
                log.info("queue_has_room", sender=self._sender, queue=queue)
            return True
        if queue not in self._full:
            self._full.add(queue)
            log.warning("queue_full", sender=self._sender, queue=queue, waiting=length)
        return False


class Backpressure:
    """Limits the messages that this process sends. Threads may share it.

    It counts a queue once a second, and adds the messages that it allows in between.
    """

    def __init__(self, connect: Connect, most: int, sender: str) -> None:
        self._connect = connect
        self._limit = Limit(most, sender)
        self._lock = threading.Lock()
        self._counted: dict[str, tuple[float, int]] = {}

    def allows_one_more(self, queue: str) -> bool:
        """Return whether the process may send one more message; True while the broker
        does not answer.
        """
        with self._lock:
            counted_s, length = self._counted.get(queue, (float("-inf"), 0))
            if time.monotonic() - counted_s >= COUNT_EVERY_S:
                # A broker that is away takes longer to ask than a count counts: threads
                # that have waited for this one must not ask again.
                length, counted_s = self._length(queue), time.monotonic()
            self._counted[queue] = (counted_s, length + 1)
            return self._limit.allows(queue, length)

    def is_backlogged(self, queue: str) -> bool:
        """Return whether more messages wait in the queue than a worker takes at a
        time.
        """
        return self._length(queue) > BACKLOG_MESSAGES

    def _length(self, queue: str) -> int:
        return queue_lengths(self._connect, [queue])
