"""The writer of callbacks: it stores each one on disk before gRPC acknowledges it, and stores
heartbeats of this process and of the reporters.

One thread writes, and commits all waiting callbacks together. Callers wait for it
TIMEOUT_S at most: a database that hangs must delay neither the answers to sshd nor the
end of the process.
"""

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

import psycopg
import structlog

from grpc_callbacks.callback_limits import MAX_CALLBACKS, CallbackOrigin
from grpc_callbacks.callback_store import TIMEOUT_S, BatchOutcome, CallbackStore, Row
from grpc_callbacks.callers import Proof
from grpc_callbacks.validation import CallbackPayload
from supervisor_tasks.errors import PermanentError, SupervisorError, TransientError
from supervisor_tasks.jobs.trace import NoTraces, Tracer
from supervisor_tasks.ledger.heartbeats import MAX_REPORTERS, reporter_of
from supervisor_tasks.ledger.periodic_run_names import CALLBACKS as THIS_PROCESS

log = structlog.get_logger()

BATCH_CALLBACKS = 200
HEARTBEAT_EVERY_S = 2.0

Answer = asyncio.Future[None]
# and when it came; with an empty row: only a check whether the database answers
Entry = tuple[Row, Answer, float]


class CallbackNotStoredError(TransientError):
    """The database did not store the callback; a retry helps."""


class InboxFullError(TransientError):
    """There is no room for more callbacks about the job. The caller must keep it and
    retry after the job is over.
    """


class NoSuchJobError(PermanentError):
    """The ledger knows no such job under that SLURM id, and has no room for more
    callbacks about unknown jobs.
    """


REFUSED: dict[CallbackOrigin, type[SupervisorError]] = {
    CallbackOrigin.OURS: InboxFullError,
    CallbackOrigin.EARLY: InboxFullError,
    CallbackOrigin.UNKNOWN_JOB: NoSuchJobError,
}


class CallbackWriter:
    """Stores the callbacks of one cluster. Threads may share it."""

    def __init__(
        self,
        database_url: str,
        cluster: str,
        most: Mapping[CallbackOrigin, int] = MAX_CALLBACKS,
        tracer: Tracer | None = None,
    ) -> None:
        self._cluster = cluster
        self._tracer = tracer or NoTraces()
        self._most = most
        self._store = CallbackStore(database_url, cluster, most)
        self._waiting: SimpleQueue[Entry | None] = SimpleQueue()
        self._busy_since_s: float | None = None
        # since the last try to store a heartbeat
        self._reporters_called = set[str]()
        self._reporters_lock = threading.Lock()
        self._heartbeat_s = float("-inf")
        self._thread = threading.Thread(
            target=self._write_batches, name="callback_writer", daemon=True
        )
        self._thread.start()

    async def store(
        self, report: CallbackPayload, peer: str, proof: Proof = Proof.NO_KEY
    ) -> None:
        """Commit a callback.

        A repeat makes no second row. After HINT_AGAIN_S a repeat marks the row unread,
        so that a worker looks at the job again. A repeat with a proof makes the row
        proven. Raises CallbackNotStoredError or InboxFullError (a retry helps) or
        NoSuchJobError (a retry is useless).
        """
        row = {
            "cluster": self._cluster,
            "job_id": report.job_id,
            "slurm_id": report.slurm_id,
            "status": report.status,
            "duration_s": report.duration_s,
            "exit_code": report.exit_code,
            "peer": peer,
            "proof": proof.value,
        }
        try:
            await self._written(row)
        except (psycopg.Error, TimeoutError) as error:
            raise CallbackNotStoredError("the callback could not be stored") from error

    async def is_open(self) -> bool:
        """Return whether the database can store a callback."""
        try:
            await self._written({})
        except (psycopg.Error, TimeoutError, CallbackNotStoredError):
            return False
        return True

    def note_reporter_heartbeat(self, node: str) -> None:
        """Note the heartbeat of a node's reporter; the writer stores it with the next
        heartbeat of this process. Never waits for the database.
        """
        with self._reporters_lock:
            if len(self._reporters_called) < MAX_REPORTERS:
                self._reporters_called.add(reporter_of(node))

    def close(self) -> None:
        """Write the waiting callbacks and close the connection; waits for a database
        that hangs TIMEOUT_S at most.
        """
        self._waiting.put(None)
        self._thread.join(TIMEOUT_S)
        self._store.close()

    async def _written(self, row: Row) -> None:
        busy_since_s = self._busy_since_s
        if busy_since_s is not None and time.monotonic() - busy_since_s > TIMEOUT_S:
            raise TimeoutError(
                f"the database has not answered for more than {TIMEOUT_S} s"
            )
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        expiry = loop.call_later(TIMEOUT_S, _expire, done)
        self._waiting.put((row, done, time.time()))
        try:
            await done
        finally:
            expiry.cancel()

    def _write_batches(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first, *self._also_waiting()]
            wanted = [entry for entry in batch if not entry[1].done()]
            self._busy_since_s = time.monotonic()
            self._write(wanted)
            self._busy_since_s = None

    def _write(self, entries: Sequence[Entry]) -> None:
        """Store a batch, and answer its callers."""
        outcome = self._try_to_store([row for row, _, _ in entries if row])
        if not isinstance(outcome, BatchOutcome):
            _set_answers([(done, outcome) for _, done, _ in entries])
            return
        answers = list[tuple[Answer, Exception | None]]()
        for row, done, _ in entries:
            origin = outcome.refused.get(id(row))
            answers.append((done, self._refusal(origin)))
        _set_answers(answers)
        for row, _, came_s in entries:
            if id(row) in outcome.known:
                self._trace(row, came_s)
        self._record_heartbeats()

    def _trace(self, row: Row, came_s: float) -> None:
        """Record a span for a callback about a job of the ledger. A stranger can make
        up any other job.
        """
        self._tracer.span(
            row["job_id"],
            "callback",
            came_s,
            time.time(),
            proof=row["proof"],
            slurm_id=row["slurm_id"],
            status=row["status"],
            duration_s=row["duration_s"],
            exit_code=row["exit_code"],
        )

    def _refusal(self, origin: CallbackOrigin | None) -> SupervisorError | None:
        """Return the error for a caller; None if the callback had room."""
        if origin is None:
            return None
        return REFUSED[origin](
            f"more than {self._most[origin]} callbacks about {origin}"
        )

    def _also_waiting(self) -> list[Entry]:
        entries: list[Entry] = []
        while len(entries) < BATCH_CALLBACKS:
            try:
                entry = self._waiting.get_nowait()
            except Empty:
                break
            if entry is None:
                self._waiting.put(None)  # the thread ends after this batch
                break
            entries.append(entry)
        return entries

    def _try_to_store(self, rows: list[Row]) -> BatchOutcome | Exception:
        """Store the rows, or return the error. If an error ended the thread, no caller
        would get an answer.
        """
        try:
            return self._store.store(rows)
        except psycopg.Error as error:
            return error
        except Exception as error:
            log.exception("callback_write_failed", callbacks=len(rows))
            not_stored = CallbackNotStoredError(
                f"the callbacks could not be stored: {type(error).__name__}"
            )
            not_stored.__cause__ = error
            return not_stored

    def _record_heartbeats(self) -> None:
        """Record the heartbeat of this process, and those of the reporters that came
        since the last time. No caller waits.
        """
        if time.monotonic() - self._heartbeat_s < HEARTBEAT_EVERY_S:
            return
        with self._reporters_lock:
            names = [THIS_PROCESS, *self._reporters_called]
            self._reporters_called.clear()
        try:
            self._store.record_heartbeats(names)
            self._heartbeat_s = time.monotonic()
        except Exception:
            # without heartbeats the workers raise an alarm
            log.exception("heartbeat_write_failed")


def _expire(done: Answer) -> None:
    if not done.done():
        done.set_exception(
            TimeoutError(f"the database did not answer in {TIMEOUT_S} s")
        )


def _set_answers(answers: Sequence[tuple[Answer, Exception | None]]) -> None:
    """Answer the callers, those of one event loop together. A loop that has ended has no
    callers that wait.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Answer, Exception | None]]] = {}
    for done, failure in answers:
        by_loop.setdefault(done.get_loop(), []).append((done, failure))
    for loop, answers_of_loop in by_loop.items():
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_set, answers_of_loop)


def _set(answers: Sequence[tuple[Answer, Exception | None]]) -> None:
    for done, failure in answers:
        if done.done():
            continue
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)
