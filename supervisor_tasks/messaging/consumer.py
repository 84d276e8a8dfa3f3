"""How worker and beat survive a broker that is away, hangs or loses its data: they
retry for ever, and log it once.

Celery itself waits longer after each try, and gives up after a hundred. A worker that
answers pings but receives no messages ends, so that its supervisor (systemd, compose,
Kubernetes) starts it again.
"""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from celery import Celery
from celery.exceptions import CPendingDeprecationWarning
from celery.worker import state
from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown
from kombu.connection import Connection
from kombu.transport.redis import Channel as RedisChannel

from plugins.probes.progress import LOOP, PROGRESS_EVERY_S
from supervisor_tasks.messaging.backpressure import queue_lengths

log = structlog.get_logger()

RETRY_S = 1.0  # between two tries to connect, without limit
EVENTS_EVERY_S = 0.5
# checks of the queues with the same result before the worker counts as receiving none
SAMPLES = 10
STUCK_LOOP_GRACE_S = 15.0  # for a worker to end its work

# Celery warns at each reconnection. The results of running tasks are in the ledger; a
# second delivery changes nothing.
warnings.filterwarnings(
    "ignore", message=r"\s*In Celery 5\.1", category=CPendingDeprecationWarning
)

# A worker whose connection broke must not try to put back the messages that it
# received: kombu asks the broken connection for its host, and the worker ends. Beat
# sends new messages for the work that was not done.
RedisChannel.do_restore = False


ADVICE = "start Redis, or correct BROKER_URL and its password; it is tried each second"


class OutageLog:
    """Logs an outage of the broker: once when it begins, once when it ends."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def record_failure(self, error: BaseException) -> None:
        """Note that the broker did not answer."""
        if self._since_s is None:
            self._since_s = time.monotonic()
            log.warning("broker_disconnected", error=str(error), advice=ADVICE)

    def record_recovery(self) -> None:
        """Note that the broker answered."""
        if self._since_s is not None:
            log.info(
                "broker_reconnected", away_s=round(time.monotonic() - self._since_s, 1)
            )
            self._since_s = None


def connected(connection: Any, outage: OutageLog, **options: Any) -> Connection:
    """Wait without limit until the broker accepts the connection, and return it."""
    steady = {"interval_start": RETRY_S, "interval_step": 0, "interval_max": RETRY_S}
    ready: Connection = connection.ensure_connection(
        lambda error, _: outage.record_failure(error), None, **steady, **options
    )
    return ready


class ReconnectingConsumer(Consumer):  # type: ignore[misc]  # Celery has no types
    """A worker's consumer that waits for the broker without limit."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._outage = OutageLog()
        super().__init__(*args, **kwargs)

    def ensure_connected(self, conn: Connection) -> Connection:
        """Connect, with RETRY_S between two tries; Celery itself waits up to 30 s."""
        ready = connected(conn, self._outage, callback=maybe_shutdown)
        self._outage.record_recovery()
        self.first_connection_attempt = False
        return ready

    def register_with_event_loop(self, hub: Any) -> None:
        """Send the events for Flower every EVENTS_EVERY_S: Celery itself would send a
        message for nearly each event.
        """
        super().register_with_event_loop(hub)
        hub.call_repeatedly(EVENTS_EVERY_S, self._flush_events)
        hub.call_repeatedly(PROGRESS_EVERY_S, LOOP.completed)

    def on_send_event_buffered(self) -> None:
        """Send nothing now: `register_with_event_loop` sends the events later."""


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
            log.critical(
                "worker_not_receiving",
                waiting=waiting,
                advice="the worker ends; start it again",
            )
            _end()


def _end() -> None:
    """End the process, at the latest after STUCK_LOOP_GRACE_S; its leases end with it."""
    os.kill(os.getpid(), signal.SIGTERM)
    # a loop that is stuck does not react to SIGTERM either
    time.sleep(STUCK_LOOP_GRACE_S)
    os._exit(1)
