"""Rings for the witness: one message, in the background, whatever the broker does."""

import threading
from typing import Any

import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from supervisor_tasks.messaging.backpressure import Backpressure
from supervisor_tasks.queues import QUEUE_OF_TASK, TASKS

log = structlog.get_logger()

PATIENCE_S = 2.0
MOST_WAITING = (
    100  # messages in the witness's queue; where there are more, nobody works them off, or one more changes nothing
)
PAUSE_S = 0.1  # completions come in bursts, and each message costs a worker a look into the inbox


class Bell:
    """The first ring is sent at once; those within PAUSE_S of it, or while it is being sent, become one more. A lost
    message is late and nothing else: a tick of the fleet reads the inbox too. So is one that is not sent because the
    queue is full.
    """

    def __init__(
        self, broker_url: str, cluster: str, most_waiting: int = MOST_WAITING, tls: dict[str, Any] | None = None
    ) -> None:
        timeouts = {"socket_timeout": PATIENCE_S, "socket_connect_timeout": PATIENCE_S}
        self._celery = Celery(broker=broker_url, broker_use_ssl=tls)
        self._celery.conf.update(broker_transport_options=timeouts, task_publish_retry=False, task_ignore_result=True)
        self._queue = QUEUE_OF_TASK["witness"].of(cluster)
        self._backpressure = Backpressure(self._celery, most_waiting, "callbacks")
        self._rung = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._ring_on, name="bell", daemon=True)
        self._thread.start()

    def ring(self) -> None:
        """There is something in the inbox. Never waits."""
        self._rung.set()

    def close(self) -> None:
        """Ring once more, and stop: something may have been rung that was not sent."""
        self._closing.set()
        self._rung.set()
        self._thread.join(2 * PATIENCE_S)

    def _ring_on(self) -> None:
        last = False
        while not last:
            self._rung.wait()
            last = self._closing.is_set()
            self._rung.clear()
            self._try_to_send()
            self._closing.wait(PAUSE_S)

    def _try_to_send(self) -> None:
        """As _send. What nobody foresaw costs a wake-up and not the thread: nobody would ring any more."""
        try:
            self._send()
        except Exception:
            log.exception("bell_failed")

    def _send(self) -> None:
        if not self._backpressure.allows_one_more(self._queue):
            return
        try:
            self._celery.send_task(f"{TASKS}.witness", queue=self._queue, ignore_result=True)
        except OperationalError as error:
            log.warning("wake_up_lost", task="witness", error=str(error))
