"""The inbox: what plugins said, on disk before it is acknowledged; and, beside it, signs of life of those who tell.

One thread writes, and commits all that is waiting at once. Callers wait for it no longer than TIMEOUT_S, whatever the
database does: one that hangs must hold neither the answers to sshd nor the end of the process.
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
from grpc_callbacks.room import MOST, Kind, Known, Scope, scope_of
from grpc_callbacks.validation import StatusReport
from supervisor_tasks.crash import Point, around
from supervisor_tasks.errors import PermanentError, SupervisorError, TransientError
from supervisor_tasks.ledger.models import Callback
from supervisor_tasks.ledger.tellers import CALLBACKS as THIS_PROCESS
from supervisor_tasks.ledger.tellers import REPORTER, leave_signs

log = structlog.get_logger()

CALLBACKS = Callback.metadata.tables["callbacks"]
TIMEOUT_S = 2  # the plugins wait for 30 s; sshd and people wait for less
BATCH = 200
SIGN_EVERY_S = 2.0

# All that is asked here is found by an index. The planner reads a small table as a whole, and keeps doing so for minutes after
# the table has grown, until autovacuum has counted its rows: a burst of callbacks into an empty ledger cost 1.5 ms each instead
# of 0.1 ms.
PLANNER = "-c enable_seqscan=off -c jit=off"

# A database whose host is gone without a word is noticed by the kernel (libpq; no effect on Unix sockets).
CONNECT = {
    "connect_timeout": TIMEOUT_S,
    "options": f"-c statement_timeout={TIMEOUT_S * 1000} {PLANNER}",
    "tcp_user_timeout": TIMEOUT_S * 1000,
    "keepalives_idle": TIMEOUT_S,
    "keepalives_interval": 1,
    "keepalives_count": 2,
}

HINT_AGAIN_S = 30.0  # a second run of a job begins in the words of the first; a plugin that tries again does so sooner

# What the ledger knows of the jobs that are spoken of, and how many callbacks of the same standing it keeps about each of them
# under that SLURM id.
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
# How many are kept about a job that has no SLURM id yet, under all ids; and about all jobs that the ledger did not know.
KEPT = {
    Kind.EARLY: text(
        """
        SELECT count(*) FROM (
            SELECT FROM callbacks WHERE cluster = :cluster AND job_id = :job_id AND (proof = 'proven') = :proven LIMIT :most
        ) AS found
        """
    ),
    Kind.STRANGE: text(
        """
        SELECT count(*) FROM (
            SELECT FROM callbacks WHERE cluster = :cluster AND strange AND (proof = 'proven') = :proven LIMIT :most
        ) AS found
        """
    ),
}
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
Answer = asyncio.Future[None]
Entry = tuple[Row | None, Answer]  # without a row: only a question whether the database is there


class InboxClosedError(TransientError):
    """The database does not take it; the caller shall come again."""


class InboxFullError(TransientError):
    """Enough was said of the job, and this was not stored: the caller keeps it, and shall come again when the job is over."""


class NoSuchJobError(PermanentError):
    """The ledger knows no such job under that SLURM id, and there is no room for more about jobs that it does not know."""


REFUSED: dict[Kind, type[SupervisorError]] = {
    Kind.OURS: InboxFullError,
    Kind.EARLY: InboxFullError,
    Kind.STRANGE: NoSuchJobError,
}


class Inbox:
    """Where callbacks of one cluster are kept. Threads may share it."""

    def __init__(self, database_url: str, cluster: str, most: Mapping[Kind, int] = MOST) -> None:
        self._cluster = cluster
        self._most = most
        self._engine: Engine = create_engine(database_url, pool_size=1, max_overflow=0, connect_args=CONNECT)
        self._insert = _insert()
        self._waiting: SimpleQueue[Entry | None] = SimpleQueue()
        self._busy_since_s: float | None = None
        self._reporter_heard = threading.Event()
        self._signed_s = float("-inf")
        self._thread = threading.Thread(target=self._write_on, name="inbox", daemon=True)
        self._thread.start()

    async def store(self, report: StatusReport, peer: str, proof: Proof = Proof.NO_KEY) -> None:
        """Commit a callback. A repeat is not stored again: after HINT_AGAIN_S it is a hint to look once more, and the ledger
        knows it for proven if it is now. Raises InboxClosedError, InboxFullError (come again) or NoSuchJobError.
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
            raise InboxClosedError("the callback could not be stored") from error

    async def is_open(self) -> bool:
        """Whether the database would take a callback."""
        try:
            await self._written(None)
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

    async def _written(self, row: Row | None) -> None:
        busy_since_s = self._busy_since_s
        if busy_since_s is not None and time.monotonic() - busy_since_s > TIMEOUT_S:
            raise TimeoutError(f"the database has not answered for more than {TIMEOUT_S} s")
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        expiry = loop.call_later(TIMEOUT_S, _expire, done)
        self._waiting.put((row, done))
        try:
            await done
        finally:
            expiry.cancel()

    def _write_on(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first, *self._also_waiting()]
            wanted = [(row, done) for row, done in batch if not done.done()]
            self._busy_since_s = time.monotonic()
            refused = dict[int, Kind]()
            failure = self._try_to_commit([row for row, _ in wanted if row is not None], refused)
            answers: list[tuple[Answer, Exception | None]]
            if failure is None:
                answers = [(done, self._refusal(refused.get(id(row)))) for row, done in wanted]
            else:
                answers = [(done, failure) for _, done in wanted]
            _tell(answers)
            if failure is None:
                self._leave_signs()
            self._busy_since_s = None

    def _refusal(self, kind: Kind | None) -> SupervisorError | None:
        return None if kind is None else REFUSED[kind](f"more than {self._most[kind]} callbacks about {kind}")

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

    def _try_to_commit(self, rows: list[Row], refused: dict[int, Kind]) -> Exception | None:
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

    def _commit(self, rows: list[Row], refused: dict[int, Kind]) -> SQLAlchemyError | None:
        """What went wrong, if anything; `refused` gets those for which there is no room, by their id().
        A connection that was kept over a
        restart of the database fails once.
        """
        for attempt in (1, 2):
            try:
                with _point_of(rows), self._engine.begin() as connection:
                    refused.clear()
                    refused.update(self._execute(connection, rows))
            except SQLAlchemyError as error:
                if attempt == 1 and getattr(error, "connection_invalidated", False):
                    continue
                return error
            return None
        raise AssertionError("the second attempt returns")

    def _execute(self, connection: Connection, rows: list[Row]) -> dict[int, Kind]:
        """Store what there is room for; returns the others, by their id(), and what they speak of."""
        if not rows:
            connection.execute(text("SELECT 1 FROM callbacks LIMIT 1"))
            return {}
        scopes, left = self._room(connection, rows)
        fitting, others = list[Row](), list[tuple[Row, Kind]]()
        for row, scope in zip(rows, scopes, strict=True):
            if left[scope] > 0:
                left[scope] -= 1
                fitting.append(row | {"strange": scope[0] is Kind.STRANGE})
            else:
                others.append((row, scope[0]))
        if fitting:
            connection.execute(self._insert, fitting)
        return {id(row): kind for row, kind in others if not connection.scalar(NEEDLESS, row)}

    def _room(self, connection: Connection, rows: list[Row]) -> tuple[list[Scope], dict[Scope, int]]:
        """With what each callback is counted, and for how many more of them there is room."""
        pairs = [(row["job_id"], row["slurm_id"], row["proof"] is Proof.PROVEN) for row in rows]
        job_ids, slurm_ids, proven = zip(*dict.fromkeys(pairs), strict=True)
        about = {"job_ids": list(job_ids), "slurm_ids": list(slurm_ids), "proven": list(proven)}
        most = {"cluster": self._cluster, "most": self._most[Kind.OURS]}
        scopes, left = dict[tuple[str, int, bool], Scope](), dict[Scope, int]()
        for found in connection.execute(KNOWN, about | most):
            job = Known(found.given_id, found.state) if found.known else None
            scope = scope_of(found.job_id, found.slurm_id, job, proven=found.proven)
            scopes[found.job_id, found.slurm_id, found.proven] = scope
            if scope[0] is Kind.OURS:
                left[scope] = self._most[Kind.OURS] - found.kept
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
    """Wake the callers, those of one event loop together. One that has ended waits for nothing any more."""
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
    """What was said before without a proof, and now with one, is proven. A repeat about no job of ours is not read again: it
    would be kept for as long as a stranger repeats it.
    """
    adding = insert(CALLBACKS)
    now_proven = and_(adding.excluded.proof == Proof.PROVEN, CALLBACKS.c.proof != Proof.PROVEN)
    old = CALLBACKS.c.read_at < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, HINT_AGAIN_S)
    changes = {
        "read_at": None,
        "proof": case((now_proven, adding.excluded.proof), else_=CALLBACKS.c.proof),
        "peer": case((now_proven, adding.excluded.peer), else_=CALLBACKS.c.peer),
    }
    news = or_(now_proven, and_(old, not_(CALLBACKS.c.strange)))
    return adding.on_conflict_do_update(constraint="callbacks_content", set_=changes, where=news)


def _point_of(rows: list[Row]) -> AbstractContextManager[None]:
    """A question whether the database is there changes nothing."""
    return around(Point.CALLBACK_STORED) if rows else nullcontext()
