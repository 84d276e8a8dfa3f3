"""Which process may carry out an effect.

A holder is a process that works on effects. It has a random number, and keeps a
Postgres advisory lock on this number for as long as it lives. The lock ends with the
process's connection, so the leases of a killed worker are free at once.

A process that stands still (stopped, swapped out, cut off from the database) keeps its
connections. So each holder sends a query over its connection every second. The same
query shows when the other holders last sent theirs. A holder that is silent for too
long loses all its connections to the database, and with them its locks and its open
transaction (docs/decisions/0004).
"""

import secrets
import threading
import time
from collections.abc import Iterable
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, TextClause, bindparam, func, select, text
from sqlalchemy.exc import ProgrammingError

from supervisor_tasks.ledger.database import DATABASE_ERRORS, read_connection
from supervisor_tasks.ledger.driver import PROCESS
from supervisor_tasks.ledger.lock_names import WORKER_SESSIONS

log = structlog.get_logger()

HEARTBEAT_EVERY_S = 1.0
# a holder that is silent for so long loses its leases and locks
SESSION_TIMEOUT_S = 15.0
# a holder whose own last look is this old ends no other holder: it stood still itself,
# or the database did
WATCH_GAP_S = 5.0

# The numbers of the holders that live, as a part of a statement. The same statement must
# read the leases: a worker that starts takes its lock before its first lease.
ALIVE_SESSIONS = f"""
    SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND classid = {WORKER_SESSIONS} AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""  # noqa: S608  only constants

OTHERS = text(
    "SELECT pid, backend_start::text AS since, state_change::text AS last_query_at FROM pg_stat_activity WHERE pid IN ("
    " SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = :holders AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    # Postgres shows state_change only of one's own role
    ") AND pid <> pg_backend_pid() AND state_change IS NOT NULL"
).bindparams(holders=WORKER_SESSIONS)

# Ends the connection that holds the lock, and all others of its process. database.py
# gives the connections of a process one common name of their own.
END_PROCESS = text(
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity, ("
    " SELECT application_name AS name FROM pg_stat_activity"
    " WHERE pid = :pid AND backend_start::text = :since AND state_change::text = :last_query_at"
    ") AS silent WHERE pid = :pid OR (application_name = silent.name AND starts_with(silent.name, :prefix))"
).bindparams(prefix=f"{PROCESS} ")


class StaleSessionDetector:
    """Measures for how long other holders have been silent, by this process's own
    clock. Pure.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str, str], float] = {}
        self._looked_s = float("-inf")

    def silent_holders(
        self, holders: Iterable[tuple[int, str, str]], now_s: float
    ) -> list[tuple[int, str, str]]:
        """The holders (process id, its start, its last query) that have sent no query
        for SESSION_TIMEOUT_S.
        """
        before = dict[tuple[int, str, str], float]()
        if now_s - self._looked_s <= WATCH_GAP_S:
            before = self._seen
        self._looked_s = now_s
        self._seen = {holder: before.get(holder, now_s) for holder in holders}
        return [
            holder
            for holder, since_s in self._seen.items()
            if now_s - since_s >= SESSION_TIMEOUT_S
        ]


class WorkerSession:
    """This process, as the ledger knows it. Its number changes when the database has
    lost its connection. Its methods raise LedgerUnavailableError, when the database
    does not answer; a retry helps.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._number = 0
        self._checked_s = float("-inf")
        self._silence = StaleSessionDetector()
        self._deferred: list[tuple[TextClause, dict[str, Any]]] = []
        self._closed = threading.Event()
        self._heartbeat_thread: threading.Thread | None = None

    def number(self) -> int:
        """The number under which this process takes leases now. It connects to the
        database first if it must.
        """
        with self._lock:
            fresh = time.monotonic() - self._checked_s < 2 * HEARTBEAT_EVERY_S
            if self._connection is None or not (
                fresh or self._heartbeat(self._connection)
            ):
                self._renew()
            return self._number

    def defer_release(self, statement: TextClause, parameters: dict[str, Any]) -> None:
        """Keep a statement that gives effects back, and execute it as soon as the
        database can write again.

        A full disk or a missing connection can prevent it now. A process that loses its
        number drops these statements: its leases are free then.
        """
        with self._lock:
            if self._connection is not None:
                self._deferred.append((statement, parameters))

    def close(self) -> None:
        """Give up all leases of this process."""
        self._closed.set()
        with self._lock:
            if self._connection is not None:
                self._discard_connection(self._connection)

    def _renew(self) -> None:
        connection = read_connection(self._engine)
        self._number = secrets.randbelow(2**31 - 1) + 1
        connection.execute(
            select(func.pg_advisory_lock(WORKER_SESSIONS, bindparam("n", self._number)))
        )
        self._connection, self._checked_s = connection, time.monotonic()
        if self._heartbeat_thread is None:
            self._heartbeat_thread = threading.Thread(
                target=self._keep_alive, name="holder", daemon=True
            )
            self._heartbeat_thread.start()

    def _keep_alive(self) -> None:
        while not self._closed.wait(HEARTBEAT_EVERY_S):
            with self._lock:
                if self._connection is not None and self._heartbeat(self._connection):
                    self._flush_releases(self._connection)

    def _heartbeat(self, connection: Connection) -> bool:
        """Show that this process is alive, and end holders that stand still. False when
        the connection is lost.
        """
        try:
            others = list(map(tuple, connection.execute(OTHERS)))
            self._checked_s = time.monotonic()
            for pid, since, last_query_at in self._silence.silent_holders(
                others, self._checked_s
            ):
                _end_process(connection, pid, since, last_query_at)
        except DATABASE_ERRORS:
            self._discard_connection(connection)
            return False
        return True

    def _flush_releases(self, connection: Connection) -> None:
        try:
            while self._deferred:
                connection.execute(*self._deferred[0])
                self._deferred.pop(0)
        except DATABASE_ERRORS as error:
            # It is tried again after the next heartbeat, which shows whether the
            # connection is lost.
            log.warning(
                "lease_release_deferred", owed=len(self._deferred), error=str(error)
            )

    def _discard_connection(self, connection: Connection) -> None:
        self._connection = None
        self._deferred.clear()
        connection.invalidate()
        connection.close()


def _end_process(
    connection: Connection, pid: int, since: str, last_query_at: str
) -> None:
    try:
        ended = connection.scalar(
            END_PROCESS, {"pid": pid, "since": since, "last_query_at": last_query_at}
        )
    except ProgrammingError as error:
        # another role's process, which our role may not end; our connection works
        log.error("worker_session_terminate_denied", backend=pid, error=str(error.orig))
        return
    log.warning(
        "worker_session_timed_out",
        backend=pid,
        silent_s=SESSION_TIMEOUT_S,
        connections_ended=ended,
    )
