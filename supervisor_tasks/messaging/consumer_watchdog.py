"""Ends a worker that receives no messages although some wait for it, so that systemd,
compose, Kubernetes or `supervisor run` starts it again.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from celery import Celery
from celery.worker import state

from supervisor_tasks.messaging.backpressure import queue_lengths

log = structlog.get_logger()

# checks of the queues with the same result before the worker counts as receiving none
SAMPLES = 10
STUCK_LOOP_GRACE_S = 15.0  # for a worker to end its work


class ConsumerWatchdog:
    """Decides whether an idle worker receives the messages that wait for it. Pure."""

    def __init__(self) -> None:
        self._received = -1
        self._stalled_samples = 0

    def is_receiving(self, *, received: int, waiting: int, idle: bool) -> bool:
        """Return False after SAMPLES checks in a row in which messages waited and the
        idle worker received none.
        """
        missed = waiting > 0 and idle and received == self._received
        self._received = received
        if missed:
            self._stalled_samples += 1
        else:
            self._stalled_samples = 0
        return self._stalled_samples < SAMPLES


def start_consumer_watchdog(
    consumer: Any, watchdog_timeout_s: float, goes_on: Callable[[], bool]
) -> None:
    """Start the thread that ends the worker when it has received no waiting messages
    for `watchdog_timeout_s`. The thread ends once `goes_on` returns False: the worker
    is asked to end.
    """
    queues = [queue.name for queue in consumer.app.amqp.queues.consume_from.values()]
    work = threading.Thread(
        target=_watch_consumer,
        args=(
            consumer.app,
            queues,
            consumer.pool.limit,
            watchdog_timeout_s / SAMPLES,
            goes_on,
        ),
        name="consumer-watchdog",
        daemon=True,
    )
    work.start()


def _watch_consumer(
    app: Celery,
    queues: Sequence[str],
    threads: int,
    every_s: float,
    goes_on: Callable[[], bool],
) -> None:
    watchdog = ConsumerWatchdog()
    while True:
        time.sleep(every_s)  # the checks must lie apart
        waiting = queue_lengths(app.connection_for_read, queues)
        received = sum(state.total_count.values())
        idle = len(state.active_requests) < threads
        # a worker that ends receives nothing, and waits for its tasks
        if not goes_on():
            return
        if not watchdog.is_receiving(received=received, waiting=waiting, idle=idle):
            # First of all: the loop may stand because the log takes no more lines.
            threading.Thread(target=_end, name="consumer-watchdog-end").start()
            log.critical(
                "worker_not_receiving",
                waiting=waiting,
                advice="the worker ends; start it again",
            )
            return


def _end() -> None:
    """End the process, at the latest after STUCK_LOOP_GRACE_S; its leases end with it."""
    os.kill(os.getpid(), signal.SIGTERM)
    # a loop that is stuck does not react to SIGTERM either
    time.sleep(STUCK_LOOP_GRACE_S)
    os._exit(1)
