"""The inbox: what plugins said, on disk before it is acknowledged; and, beside it, signs of life of those who tell.

One thread writes, and commits all that is waiting at once. Callers wait for it no longer than TIMEOUT_S, whatever the
database does: one that hangs must not hold the threads that answer sshd, nor the end of the process.
"""

import threading
import time
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from queue import Empty, SimpleQueue
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError

from grpc_callbacks.validation import StatusReport
from supervisor_tasks.crash import Point, around
from supervisor_tasks.errors import TransientError
from supervisor_tasks.ledger.models import Callback
from supervisor_tasks.ledger.tellers import CALLBACKS as THIS_PROCESS
from supervisor_tasks.ledger.tellers import REPORTER, leave_signs

log = structlog.get_logger()

CALLBACKS = Callback.metadata.tables["callbacks"]
TIMEOUT_S = 2  # the plugins wait for 30 s; sshd and people wait for less
BATCH = 200
SIGN_EVERY_S = 2.0

# A database whose host is gone without a word is noticed by the kernel (libpq; no effect on Unix sockets).
CONNECT = {
    "connect_timeout": TIMEOUT_S,
    "options": f"-c statement_timeout={TIMEOUT_S * 1000}",
    "tcp_user_timeout": TIMEOUT_S * 1000,
    "keepalives_idle": TIMEOUT_S,
    "keepalives_interval": 1,
    "keepalives_count": 2,
}

MOST = 1000  # different callbacks about one job under one SLURM id; plugins say a few

# The pairs of job and SLURM id of which enough was said.
FULL = text(
    """
    SELECT job_id, slurm_id FROM (
        SELECT DISTINCT * FROM unnest(CAST(:job_ids AS text[]), CAST(:slurm_ids AS bigint[])) AS given(job_id, slurm_id)
    ) AS wanted
    WHERE (
        SELECT count(*) FROM (
            SELECT FROM callbacks AS kept WHERE kept.cluster = :cluster AND kept.job_id = wanted.job_id
                AND kept.slurm_id = wanted.slurm_id LIMIT :most
        ) AS found
    ) >= :most
    """
)
# Whether a callback may be acknowledged although it is not stored: it is there already, or nothing said of the job counts.
NEEDLESS = text(
    """
    SELECT EXISTS (
        SELECT FROM callbacks WHERE cluster = :cluster AND job_id = :job_id AND slurm_id = :slurm_id AND status = :status
            AND duration_s = :duration_s AND exit_code = :exit_code
    ) OR EXISTS (SELECT FROM jobs WHERE cluster = :cluster AND job_id = :job_id AND state IN ('SETTLED', 'REFUSED'))
    """
)

Row = dict[str, Any]
Entry = tuple[Row | None, "Future[None]"]  # without a row: only a question whether the database is there


class InboxClosedError(TransientError):
    """The database does not take it; the caller shall come again."""


class InboxFullError(TransientError):
    """Enough was said of the job, and this was not stored: the caller keeps it, and shall come again when the job is over."""


class Inbox:
    """Where callbacks of one cluster are kept. Threads may share it."""

    def __init__(self, database_url: str, cluster: str, most: int = MOST) -> None:
        self._cluster = cluster
        self._most = most
        self._engine: Engine = create_engine(database_url, pool_size=1, max_overflow=0, connect_args=CONNECT)
        self._insert = insert(CALLBACKS).on_conflict_do_nothing(constraint="callbacks_content")
        self._waiting: SimpleQueue[Entry | None] = SimpleQueue()
        self._busy_since_s: float | None = None
        self._reporter_heard = threading.Event()
        self._signed_s = float("-inf")
        self._thread = threading.Thread(target=self._write_on, name="inbox", daemon=True)
        self._thread.start()

    def store(self, report: StatusReport, peer: str) -> None:
        """Commit a callback; a repeat changes nothing. Raises InboxClosedError or InboxFullError (come again)."""
        row = {
            "cluster": self._cluster,
            "job_id": report.job_id,
            "slurm_id": report.slurm_id,
            "status": report.status,
            "duration_s": report.duration_s,
            "exit_code": report.exit_code,
            "peer": peer,
        }
        try:
            self._written(row)
        except (SQLAlchemyError, TimeoutError) as error:
            raise InboxClosedError("the callback could not be stored") from error

    def is_open(self) -> bool:
        """Whether the database would take a callback."""
        try:
            self._written(None)
        except (SQLAlchemyError, TimeoutError, InboxClosedError):
            return False
        return True

    def hear_reporter(self) -> None:
        """The reporter has let itself be heard: the ledger is told with the next sign of life of this process. Never waits."""
        self._reporter_heard.set()

    def close(self) -> None:
        """Write what is waiting, and close the connection. A database that hangs is left behind."""
        self._waiting.put(None)
        self._thread.join(TIMEOUT_S)
        self._engine.dispose()

    def _written(self, row: Row | None) -> None:
        busy_since_s = self._busy_since_s
        if busy_since_s is not None and time.monotonic() - busy_since_s > TIMEOUT_S:
            raise TimeoutError(f"the database has not answered for more than {TIMEOUT_S} s")
        done: Future[None] = Future()
        self._waiting.put((row, done))
        try:
            done.result(TIMEOUT_S)
        except TimeoutError as error:
            done.cancel()
            raise TimeoutError(f"the database did not answer in {TIMEOUT_S} s") from error

    def _write_on(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first, *self._also_waiting()]
            wanted = [(row, done) for row, done in batch if done.set_running_or_notify_cancel()]
            self._busy_since_s = time.monotonic()
            refused = list[Row]()
            failure = self._try_to_commit([row for row, _ in wanted if row is not None], refused)
            for row, done in wanted:
                if failure is not None:
                    done.set_exception(failure)
                elif row is not None and row in refused:
                    done.set_exception(InboxFullError(f"more than {self._most} callbacks about one job"))
                else:
                    done.set_result(None)
            if failure is None:
                self._leave_signs()
            self._busy_since_s = None

    def _also_waiting(self) -> list[Entry]:
        entries: list[Entry] = []
        while len(entries) < BATCH:
            try:
                entry = self._waiting.get_nowait()
            except Empty:
                break
            if entry is None:
                self._waiting.put(None)  # the end, after this batch
                break
            entries.append(entry)
        return entries

    def _try_to_commit(self, rows: list[Row], refused: list[Row]) -> Exception | None:
        """As _commit. What nobody foresaw is told to the callers too: a thread that ends leaves all of them unanswered."""
        try:
            return self._commit(rows, refused)
        except Exception as error:
            log.exception("inbox_failed", callbacks=len(rows))
            closed = InboxClosedError(f"the callbacks could not be stored: {type(error).__name__}")
            closed.__cause__ = error
            return closed

    def _leave_signs(self) -> None:
        """Tell the ledger that callbacks are taken, and whether the reporter was heard. Nobody waits for that: what comes in
        between is told of later.
        """
        if time.monotonic() - self._signed_s < SIGN_EVERY_S:
            return
        names = [THIS_PROCESS, *([REPORTER] if self._reporter_heard.is_set() else [])]
        self._reporter_heard.clear()
        try:
            with self._engine.begin() as connection:
                leave_signs(connection, self._cluster, names)
            self._signed_s = time.monotonic()
        except Exception:
            log.exception("sign_of_life_failed")  # the ledger takes us for away, which calls the operator

    def _commit(self, rows: list[Row], refused: list[Row]) -> SQLAlchemyError | None:
        """What went wrong, if anything; `refused` gets those for which there is no room. A connection that was kept over a
        restart of the database fails once.
        """
        for attempt in (1, 2):
            try:
                with _point_of(rows), self._engine.begin() as connection:
                    refused[:] = self._execute(connection, rows)
            except SQLAlchemyError as error:
                if attempt == 1 and getattr(error, "connection_invalidated", False):
                    continue
                return error
            return None
        raise AssertionError("the second attempt returns")

    def _execute(self, connection: Connection, rows: list[Row]) -> list[Row]:
        """Store what there is room for; returns the others."""
        if not rows:
            connection.execute(text("SELECT 1 FROM callbacks LIMIT 1"))
            return []
        parameters = {
            "cluster": self._cluster,
            "most": self._most,
            "job_ids": [row["job_id"] for row in rows],
            "slurm_ids": [row["slurm_id"] for row in rows],
        }
        full = {(pair.job_id, pair.slurm_id) for pair in connection.execute(FULL, parameters)}
        fitting = [row for row in rows if (row["job_id"], row["slurm_id"]) not in full]
        if fitting:
            connection.execute(self._insert, fitting)
        others = [row for row in rows if (row["job_id"], row["slurm_id"]) in full]
        return [row for row in others if not connection.scalar(NEEDLESS, row)]


def _point_of(rows: list[Row]) -> AbstractContextManager[None]:
    """A question whether the database is there changes nothing."""
    return around(Point.CALLBACK_STORED) if rows else nullcontext()
