"""How full the queues are. Nobody may send to one that is not worked off: Redis would grow without end."""

import threading
import time
from typing import Any

import structlog
from celery import Celery
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

log = structlog.get_logger()

COUNT_EVERY_S = 1.0
BUSY = 16  # messages in a queue are more than a worker takes at a time: what was sent before may be among them


class Brim:
    """How full the queues are: counted once a second, and in between by what this process sends. Threads may share it."""

    def __init__(self, app: Celery, most: int) -> None:
        self._app = app
        self._most = most
        self._lock = threading.Lock()
        self._counted: dict[str, tuple[float, int]] = {}
        self._full: set[str] = set()

    def takes_one_more(self, queue: str) -> bool:
        """Whether there is room; a broker that does not answer is not asked whether it is full."""
        with self._lock:
            counted_s, waiting = self._counted.get(queue, (float("-inf"), 0))
            if time.monotonic() - counted_s >= COUNT_EVERY_S:
                counted_s, waiting = time.monotonic(), self._count(queue)
            self._counted[queue] = (counted_s, waiting + 1)
            self._tell(queue, waiting)
            return waiting < self._most

    def is_busy(self, queue: str) -> bool:
        """Whether messages wait longer there for want of workers."""
        return self._count(queue) > BUSY

    def _count(self, queue: str) -> int:
        try:
            with self._app.producer_or_acquire() as producer:
                channel: Any = producer.channel
                return int(channel._size(queue))
        except (KombuError, RedisError, OSError):
            return 0

    def _tell(self, queue: str, waiting: int) -> None:
        if waiting >= self._most and queue not in self._full:
            self._full.add(queue)
            log.warning("wake_ups_held_back", queue=queue, waiting=waiting)
        elif waiting < self._most and queue in self._full:
            self._full.remove(queue)
            log.info("wake_ups_go_on", queue=queue)
