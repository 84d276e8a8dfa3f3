"""How worker and beat survive a broker that is away, hangs or loses its data: they
retry for ever, and log it once.

Celery itself waits longer after each try, and gives up after a hundred.
"""

import time
import warnings
from typing import Any

import structlog
from celery.exceptions import CPendingDeprecationWarning
from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown
from kombu.connection import Connection
from kombu.transport.redis import Channel as RedisChannel

from plugins.probes.progress import LOOP, PROGRESS_EVERY_S

log = structlog.get_logger()

RETRY_S = 1.0  # between two tries to connect, without limit
EVENTS_EVERY_S = 0.5

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
                "broker_reconnected",
                unavailable_s=round(time.monotonic() - self._since_s, 1),
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
