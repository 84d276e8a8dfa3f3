"""How worker and beat live through a broker that goes away, hangs or forgets: patiently, and with one line in the log.

Celery waits ever longer between two tries, and gives up after a hundred of them. A worker that has lost its ear (it answers
pings and receives nothing) ends, to be started anew.
"""

import os
import signal
import threading
import time
import warnings
from collections.abc import Sequence
from typing import Any

import structlog
from celery import Celery
from celery.exceptions import CPendingDeprecationWarning
from celery.worker import state
from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown
from kombu.connection import Connection
from kombu.transport.redis import Channel as RedisChannel

from supervisor_tasks.messaging.backpressure import queue_lengths
from supervisor_tasks.monitoring.progress import LOOP

log = structlog.get_logger()

RETRY_S = 1.0  # between two tries to connect, for as long as it takes
EVENTS_EVERY_S = 0.25
MARK_EVERY_S = 1.0
SAMPLES = 10  # looks at the queues, all with the same finding, before a worker is called deaf
LAST_WORDS_S = 15.0  # for a deaf worker to end what it is doing

# Celery says so at each reconnection. Results of what runs meanwhile are in the ledger; a second delivery changes nothing.
warnings.filterwarnings("ignore", message=r"\s*In Celery 5\.1", category=CPendingDeprecationWarning)

# A worker whose connection broke shall not try to put back what it had received: kombu asks the broken connection for its host,
# and the worker ends. The ledger wakes again whatever was not done.
RedisChannel.do_restore = False


class Outage:
    """The broker is away: told once when it goes, once when it is back."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def goes_on(self, error: BaseException) -> None:
        """The broker did not answer."""
        if self._since_s is None:
            self._since_s = time.monotonic()
            log.warning("broker_away", error=str(error))

    def is_over(self) -> None:
        """The broker answered."""
        if self._since_s is not None:
            log.info("broker_back", away_s=round(time.monotonic() - self._since_s, 1))
            self._since_s = None


def connected(connection: Any, outage: Outage, **options: Any) -> Connection:
    """The connection once the broker takes it, however long that is."""
    steady = {"interval_start": RETRY_S, "interval_step": 0, "interval_max": RETRY_S}
    made: Connection = connection.ensure_connection(lambda error, _: outage.goes_on(error), None, **steady, **options)
    return made


class PatientConsumer(Consumer):  # type: ignore[misc]  # Celery has no types
    """A worker's consumer that waits for the broker as long as it takes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._outage = Outage()
        super().__init__(*args, **kwargs)

    def ensure_connected(self, conn: Connection) -> Connection:
        """Celery's own waits up to 30 s between two tries."""
        made = connected(conn, self._outage, callback=maybe_shutdown)
        self._outage.is_over()
        self.first_connection_attempt = False
        return made

    def register_with_event_loop(self, hub: Any) -> None:
        """Tell Flower what the tasks do a few times a second: Celery would send a message for nearly each event."""
        super().register_with_event_loop(hub)
        hub.call_repeatedly(EVENTS_EVERY_S, self._flush_events)
        hub.call_repeatedly(MARK_EVERY_S, LOOP.mark)

    def on_send_event_buffered(self) -> None:
        """Nothing is sent right away."""


class Ear:
    """Whether a worker that has nothing to do hears what waits for it. Pure."""

    def __init__(self) -> None:
        self._received = -1
        self._deaf = 0

    def hears(self, *, received: int, waiting: int, idle: bool) -> bool:
        """False once so many looks in a row found messages waiting for an idle worker that received none of them."""
        missed = waiting > 0 and idle and received == self._received
        self._deaf = self._deaf + 1 if missed else 0
        self._received = received
        return self._deaf < SAMPLES


def listen_to_oneself(consumer: Any, deaf_after_s: float) -> None:
    """Start to watch a worker's ear."""
    queues = [queue.name for queue in consumer.app.amqp.queues.consume_from.values()]
    work = threading.Thread(
        target=_watch_ear,
        args=(consumer.app, queues, consumer.pool.limit, deaf_after_s / SAMPLES),
        name="ear",
        daemon=True,
    )
    work.start()


def _watch_ear(app: Celery, queues: Sequence[str], threads: int, every_s: float) -> None:
    ear = Ear()
    while True:
        time.sleep(every_s)  # it takes looks that lie apart
        waiting = queue_lengths(app.connection_for_read, queues)
        received = sum(state.total_count.values())
        if not ear.hears(received=received, waiting=waiting, idle=len(state.active_requests) < threads):
            log.critical("worker_deaf", waiting=waiting, advice="the worker ends; start it anew")
            _end()


def _end() -> None:
    """Leases are free as soon as the process is gone."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LAST_WORDS_S)  # a loop that is stuck does not hear SIGTERM either
    os._exit(1)
