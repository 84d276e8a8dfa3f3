"""Dispatches the task poll_jobs: a thread sends one message, so that a broker that hangs
delays no caller.
"""

import threading
import uuid
from contextlib import nullcontext
from typing import Any

import structlog
from kombu.connection import Connection
from kombu.exceptions import KombuError
from kombu.messaging import Producer
from redis.exceptions import RedisError

from supervisor_tasks.messaging.backpressure import Backpressure
from supervisor_tasks.messaging.queues import QUEUE_OF_TASK, TASKS

log = structlog.get_logger()

PATIENCE_S = 2.0
# Messages in the queue of poll_jobs. With more of them, no worker serves it, or one
# more changes nothing.
MAX_WAITING_MESSAGES = 100
# completions come in bursts, and for each message a worker reads the stored callbacks and asks
# SLURM
PAUSE_S = 0.4


def poll_message() -> dict[str, Any]:
    """Return what Celery publishes for the task poll_jobs: protocol 2 of its messages.
    Celery itself would take this process 5 MB.
    """
    task_id = str(uuid.uuid4())
    no_more = dict.fromkeys(("callbacks", "errbacks", "chain", "chord"))
    about = {
        "lang": "py",
        "task": f"{TASKS}.poll_jobs",
        "id": task_id,
        "root_id": task_id,
        "retries": 0,
    }
    shown = {
        "argsrepr": "()",
        "kwargsrepr": "{}",
        "timelimit": [None, None],
        "ignore_result": True,
    }
    return {
        "body": [[], {}, no_more],
        "headers": about | shown,
        "correlation_id": task_id,
        "serializer": "json",
    }


class PollNotifier:
    """Sends a message for the first new callback at once, and one more for all that
    come during the send or PAUSE_S after.

    A message that is lost, or not sent because the queue is full, only delays the work:
    a periodic task reads the stored callbacks too.
    """

    def __init__(
        self,
        broker_url: str,
        cluster: str,
        most_waiting: int = MAX_WAITING_MESSAGES,
        tls: dict[str, Any] | None = None,
    ) -> None:
        timeouts = {"socket_timeout": PATIENCE_S, "socket_connect_timeout": PATIENCE_S}
        made: Any = Connection  # Kombu has no types
        self._connection = made(
            broker_url, ssl=tls or False, transport_options=timeouts
        )
        self._producer: Any = Producer
        self._queue = QUEUE_OF_TASK["poll_jobs"].of(cluster)
        self._backpressure = Backpressure(
            lambda: nullcontext(self._connection), most_waiting, "callbacks"
        )
        self._requested = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="poll notifier", daemon=True
        )
        self._thread.start()

    def request_poll(self) -> None:
        """Request the task poll_jobs: a new callback is stored. Never waits."""
        self._requested.set()

    def close(self) -> None:
        """Send a last message, and stop: the thread may not have sent one for the last
        callback.
        """
        self._closing.set()
        self._requested.set()
        self._thread.join(2 * PATIENCE_S)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._requested.wait()
            is_last = self._closing.is_set()
            self._requested.clear()
            self._try_to_send()
            self._closing.wait(PAUSE_S)

    def _try_to_send(self) -> None:
        """Send a message. An unexpected error loses one message, but must not end the
        thread, which sends the next ones.
        """
        try:
            self._send()
        except Exception:
            log.exception("notify_failed")

    def _send(self) -> None:
        if not self._backpressure.allows_one_more(self._queue):
            return
        try:
            self._producer(self._connection).publish(
                **poll_message(), exchange="", routing_key=self._queue
            )
        except (KombuError, RedisError, OSError) as error:
            log.warning("task_publish_failed", task="poll_jobs", error=str(error))
