"""The inbox: it stores each callback on disk before gRPC acknowledges it, and stores heartbeats of this process and of
the reporter.

One thread writes, and commits all waiting callbacks together. Callers wait for it TIMEOUT_S at most: a database that
hangs must delay neither the answers to sshd nor the end of the process.
"""

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, and_, case, create_engine, func, not_, or_, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError

from grpc_callbacks.callers import Proof
from grpc_callbacks.room import MOST, CallbackOrigin, Known, Scope, scope_of
from grpc_callbacks.validation import CallbackPayload
from supervisor_tasks.crash_points import CrashPoint, around
from supervisor_tasks.errors import PermanentError, SupervisorError, TransientError
from supervisor_tasks.jobs.trace import NoTraces, Tracer
from supervisor_tasks.ledger.heartbeats import REPORTER, record_heartbeats
from supervisor_tasks.ledger.tables import Callback
from supervisor_tasks.ledger.tick_names import CALLBACKS as THIS_PROCESS

log = structlog.get_logger()

CALLBACKS = Callback.metadata.tables["callbacks"]
TIMEOUT_S = 2  # the plugins wait for 30 s; sshd and people wait for less
BATCH = 200
SIGN_EVERY_S = 2.0

# An index answers every query here. The planner reads a small table as a whole, and keeps doing so for minutes after
# the table has grown, until autovacuum has counted its rows: a burst of callbacks into an empty ledger cost 1.5 ms each
# instead of 0.1 ms.
PLANNER = "-c enable_seqscan=off -c jit=off"

# With these options the kernel notices that the database's host is gone (libpq; no effect on Unix sockets).
CONNECT = {
    "connect_timeout": TIMEOUT_S,
    "options": f"-c statement_timeout={TIMEOUT_S * 1000} {PLANNER}",
    "tcp_user_timeout": TIMEOUT_S * 1000,
    "keepalives_idle": TIMEOUT_S,
    "keepalives_interval": 1,
    "keepalives_count": 2,
}

# A job's second run begins with the same callback as its first. A repeat after this time is a new hint; a plugin that
# tries again does so sooner.
HINT_AGAIN_S = 30.0

# What the ledger knows of the jobs in the callbacks, and how many callbacks it keeps about each job under that SLURM
# id, proven and others counted apart.
KNOWN = text(
    """
    SELECT wanted.job_id, wanted.slurm_id, wanted.proven,
        jobs.job_id IS NOT NULL AS known, jobs.slurm_id AS given_id, jobs.state, (
            SELECT count(*) FROM (
                SELECT FROM callbacks AS kept WHERE kept.cluster = :cluster AND kept.job_id = wanted.job_id
                    AND kept.slurm_id = wanted.slurm_id AND (kept.proof = 'proven') = wanted.proven LIMIT :most
            ) AS found
        ) AS kept
    FROM unnest(CAST(:job_ids AS text[]), CAST(:slurm_ids AS bigint[]), CAST(:proven AS boolean[]))
        AS wanted(job_id, slurm_id, proven)
    LEFT JOIN jobs ON jobs.cluster = :cluster AND jobs.job_id = wanted.job_id
    """
)
# How many callbacks the ledger keeps about a job that has no SLURM id yet, under all ids; and about all jobs that it
# did not know.
KEPT = {
    CallbackOrigin.EARLY: text(
        """
        SELECT count(*) FROM (
            SELECT FROM callbacks WHERE cluster = :cluster AND job_id = :job_id AND (proof = 'proven') = :proven LIMIT :most
        ) AS found
        """
    ),
    CallbackOrigin.STRANGE: text(
        """
        SELECT count(*) FROM (
            SELECT FROM callbacks WHERE cluster = :cluster AND unknown_job AND (proof = 'proven') = :proven LIMIT :most
        ) AS found
        """
    ),
}
# Whether the process may acknowledge a callback that it does not store: the ledger has it already, or the job is over
# and no callback about it counts.
NEEDLESS = text(
    """
    SELECT EXISTS (
        SELECT FROM callbacks WHERE cluster = :cluster AND job_id = :job_id AND slurm_id = :slurm_id AND status = :status
            AND duration_s = :duration_s AND exit_code = :exit_code
    ) OR EXISTS (SELECT FROM jobs WHERE cluster = :cluster AND job_id = :job_id AND state IN ('SETTLED', 'REFUSED'))
    """
)

Row = dict[str, Any]
Answer = asyncio.Future[None]
Entry = tuple[Row | None, Answer, float]  # and when it came; without a row: only a check whether the database answers


class CallbackWriterClosedError(TransientError):
    """The database did not store the callback; a retry helps."""


class InboxFullError(TransientError):
    """There is no room for more callbacks about the job. The caller must keep it and retry after the job is over."""


class NoSuchJobError(PermanentError):
    """The ledger knows no such job under that SLURM id, and has no room for more callbacks about unknown jobs."""


REFUSED: dict[CallbackOrigin, type[SupervisorError]] = {
    CallbackOrigin.OURS: InboxFullError,
    CallbackOrigin.EARLY: InboxFullError,
    CallbackOrigin.STRANGE: NoSuchJobError,
}


class CallbackWriter:
    """Stores the callbacks of one cluster. Threads may share it."""

    def __init__(
        self,
        database_url: str,
        cluster: str,
        most: Mapping[CallbackOrigin, int] = MOST,
        tracer: Tracer | None = None,
    ) -> None:
        self._cluster = cluster
        self._tracer = tracer or NoTraces()
        self._most = most
        self._engine: Engine = create_engine(database_url, pool_size=1, max_overflow=0, connect_args=CONNECT)
        self._insert = _insert()
        self._waiting: SimpleQueue[Entry | None] = SimpleQueue()
        self._busy_since_s: float | None = None
        self._reporter_heard = threading.Event()
        self._signed_s = float("-inf")
        self._thread = threading.Thread(target=self._write_on, name="inbox", daemon=True)
        self._thread.start()

    async def store(self, report: CallbackPayload, peer: str, proof: Proof = Proof.NO_KEY) -> None:
        """Commit a callback.

        A repeat makes no second row. After HINT_AGAIN_S a repeat marks the row unread, so that a worker looks at the
        job again. A repeat with a proof makes the row proven. Raises InboxClosedError or InboxFullError (a retry helps)
        or NoSuchJobError (a retry is useless).
        """
        row = {
            "cluster": self._cluster,
            "job_id": report.job_id,
            "slurm_id": report.slurm_id,
            "status": report.status,
            "duration_s": report.duration_s,
            "exit_code": report.exit_code,
            "peer": peer,
            "proof": proof,
        }
        try:
            await self._written(row)
        except (SQLAlchemyError, TimeoutError) as error:
            raise CallbackWriterClosedError("the callback could not be stored") from error

    async def is_open(self) -> bool:
        """Return whether the database can store a callback."""
        try:
            await self._written(None)
        except (SQLAlchemyError, TimeoutError, CallbackWriterClosedError):
            return False
        return True

    def hear_reporter(self) -> None:
        """Note the reporter's heartbeat; the writer stores it with the next heartbeat of this process. Never waits."""
        self._reporter_heard.set()

    def close(self) -> None:
        """Write the waiting callbacks and close the connection; waits for a database that hangs TIMEOUT_S at most."""
        self._waiting.put(None)
        self._thread.join(TIMEOUT_S)
        self._engine.dispose()

    async def _written(self, row: Row | None) -> None:
        busy_since_s = self._busy_since_s
        if busy_since_s is not None and time.monotonic() - busy_since_s > TIMEOUT_S:
            raise TimeoutError(f"the database has not answered for more than {TIMEOUT_S} s")
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        expiry = loop.call_later(TIMEOUT_S, _expire, done)
        self._waiting.put((row, done, time.time()))
        try:
            await done
        finally:
            expiry.cancel()

    def _write_on(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first, *self._also_waiting()]
            wanted = [entry for entry in batch if not entry[1].done()]
            self._busy_since_s = time.monotonic()
            refused = dict[int, CallbackOrigin]()
            known = set[int]()
            failure = self._try_to_commit([row for row, *_ in wanted if row is not None], refused, known)
            answers: list[tuple[Answer, Exception | None]]
            if failure is None:
                answers = [(done, self._refusal(refused.get(id(row)))) for row, done, _ in wanted]
            else:
                answers = [(done, failure) for _, done, _ in wanted]
            _tell(answers)
            if failure is None:
                self._trace([(row, came_s) for row, _, came_s in wanted if row is not None and id(row) in known])
                self._leave_signs()
            self._busy_since_s = None

    def _trace(self, stored: Sequence[tuple[Row, float]]) -> None:
        """Tell of callbacks about the ledger's own jobs. A stranger can make up any other job."""
        for row, came_s in stored:
            about = {name: row[name] for name in ("slurm_id", "status", "duration_s", "exit_code")}
            self._tracer.span(row["job_id"], "callback", came_s, time.time(), proof=str(row["proof"]), **about)

    def _refusal(self, kind: CallbackOrigin | None) -> SupervisorError | None:
        return None if kind is None else REFUSED[kind](f"more than {self._most[kind]} callbacks about {kind}")

    def _also_waiting(self) -> list[Entry]:
        entries: list[Entry] = []
        while len(entries) < BATCH:
            try:
                entry = self._waiting.get_nowait()
            except Empty:
                break
            if entry is None:
                self._waiting.put(None)  # the thread ends after this batch
                break
            entries.append(entry)
        return entries

    def _try_to_commit(self, rows: list[Row], refused: dict[int, CallbackOrigin], known: set[int]) -> Exception | None:
        """As _commit, and return unexpected errors too: if the thread ended, no caller would get an answer."""
        try:
            return self._commit(rows, refused, known)
        except Exception as error:
            log.exception("callback_write_failed", callbacks=len(rows))
            closed = CallbackWriterClosedError(f"the callbacks could not be stored: {type(error).__name__}")
            closed.__cause__ = error
            return closed

    def _leave_signs(self) -> None:
        """Record the heartbeat of this process, and the reporter's if one came since the last time. No caller waits."""
        if time.monotonic() - self._signed_s < SIGN_EVERY_S:
            return
        names = [THIS_PROCESS, *([REPORTER] if self._reporter_heard.is_set() else [])]
        self._reporter_heard.clear()
        try:
            with self._engine.begin() as connection:
                record_heartbeats(connection, self._cluster, names)
            self._signed_s = time.monotonic()
        except Exception:
            log.exception("heartbeat_write_failed")  # without heartbeats an alarm calls the operator

    def _commit(self, rows: list[Row], refused: dict[int, CallbackOrigin], known: set[int]) -> SQLAlchemyError | None:
        """Store the rows; returns the error, or None. `refused` gets the rows without room, by their id(), and `known`
        those about jobs of the ledger that were stored.

        Tries twice when the connection is broken: one from before a restart of the database fails once.
        """
        for attempt in (1, 2):
            try:
                with _point_of(rows), self._engine.begin() as connection:
                    refused.clear()
                    refused.update(self._execute(connection, rows, known))
            except SQLAlchemyError as error:
                if attempt == 1 and getattr(error, "connection_invalidated", False):
                    continue
                return error
            return None
        raise AssertionError("the second attempt returns")

    def _execute(self, connection: Connection, rows: list[Row], known: set[int]) -> dict[int, CallbackOrigin]:
        """Store the rows that have room; returns the kind of each other row, by its id().

        A row without room that is needless (NEEDLESS) is not returned: it counts as acknowledged.
        """
        if not rows:
            connection.execute(text("SELECT 1 FROM callbacks LIMIT 1"))
            return {}
        scopes, left = self._room(connection, rows)
        fitting, others = list[Row](), list[tuple[Row, CallbackOrigin]]()
        for row, scope in zip(rows, scopes, strict=True):
            if left[scope] > 0:
                left[scope] -= 1
                is_strange = scope[0] is CallbackOrigin.STRANGE
                fitting.append(row | {"unknown_job": is_strange})
                known |= set() if is_strange else {id(row)}
            else:
                others.append((row, scope[0]))
        if fitting:
            connection.execute(self._insert, fitting)
        return {id(row): kind for row, kind in others if not connection.scalar(NEEDLESS, row)}

    def _room(self, connection: Connection, rows: list[Row]) -> tuple[list[Scope], dict[Scope, int]]:
        """Return each callback's scope, and the room that is left in each scope."""
        pairs = [(row["job_id"], row["slurm_id"], row["proof"] is Proof.PROVEN) for row in rows]
        job_ids, slurm_ids, proven = zip(*dict.fromkeys(pairs), strict=True)
        about = {"job_ids": list(job_ids), "slurm_ids": list(slurm_ids), "proven": list(proven)}
        most = {"cluster": self._cluster, "most": self._most[CallbackOrigin.OURS]}
        scopes, left = dict[tuple[str, int, bool], Scope](), dict[Scope, int]()
        for found in connection.execute(KNOWN, about | most):
            job = Known(found.given_id, found.state) if found.known else None
            scope = scope_of(found.job_id, found.slurm_id, job, proven=found.proven)
            scopes[found.job_id, found.slurm_id, found.proven] = scope
            if scope[0] is CallbackOrigin.OURS:
                left[scope] = self._most[CallbackOrigin.OURS] - found.kept
            elif scope not in left:
                left[scope] = self._left(connection, scope)
        return [scopes[pair] for pair in pairs], left

    def _left(self, connection: Connection, scope: Scope) -> int:
        kind, job_id, _, proven = scope
        about = {"cluster": self._cluster, "job_id": job_id, "proven": proven, "most": self._most[kind]}
        return self._most[kind] - int(connection.scalar(KEPT[kind], about) or 0)


def _expire(done: Answer) -> None:
    if not done.done():
        done.set_exception(TimeoutError(f"the database did not answer in {TIMEOUT_S} s"))


def _tell(answers: Sequence[tuple[Answer, Exception | None]]) -> None:
    """Wake the callers, those of one event loop together. A loop that has ended has no callers that wait."""
    for loop in {done.get_loop() for done, _ in answers}:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_set, [entry for entry in answers if entry[0].get_loop() is loop])


def _set(answers: Sequence[tuple[Answer, Exception | None]]) -> None:
    for done, failure in answers:
        if done.done():
            continue
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)


def _insert() -> Any:
    """Return the INSERT. A repeat with a proof makes a row without one proven.

    A repeat about a job that is not ours, without a new proof, does not mark the row unread: the ledger would keep the
    row for as long as a stranger repeats it.
    """
    adding = insert(CALLBACKS)
    now_proven = and_(adding.excluded.proof == Proof.PROVEN, CALLBACKS.c.proof != Proof.PROVEN)
    old = CALLBACKS.c.read_at < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, HINT_AGAIN_S)
    changes = {
        "read_at": None,
        "proof": case((now_proven, adding.excluded.proof), else_=CALLBACKS.c.proof),
        "peer": case((now_proven, adding.excluded.peer), else_=CALLBACKS.c.peer),
    }
    news = or_(now_proven, and_(old, not_(CALLBACKS.c.unknown_job)))
    return adding.on_conflict_do_update(constraint="callbacks_content", set_=changes, where=news)


def _point_of(rows: list[Row]) -> AbstractContextManager[None]:
    """Return the crash point of a commit; none for a check of the database, which changes nothing."""
    return around(CrashPoint.CALLBACK_STORED) if rows else nullcontext()
