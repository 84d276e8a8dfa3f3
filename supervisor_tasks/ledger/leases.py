"""Who carries an effect out, and who does a drain.

A holder is a process that works on effects: a random number under which it keeps a Postgres advisory lock for as long
as it lives. The lock ends with the process's connection, so the leases of a killed worker are free at once. Single-flight
work is guarded by advisory locks of the same life.

A process that stands still (stopped, swapped out, cut off from the database) keeps its connections. So each holder says a word
over its connection every second, and sees in the same question since when the others have been silent: one that is silent
for too long loses all its connections to the database, and with them its locks and whatever transaction it was in
(docs/decisions/0004).
"""

import secrets
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, TextClause, bindparam, func, select, text
from sqlalchemy.exc import DBAPIError, ProgrammingError

from supervisor_tasks.ledger.database import PROCESS, LedgerUnavailableError, asking

log = structlog.get_logger()

GONE = (DBAPIError, LedgerUnavailableError)
HOLDERS = 0x5EED  # class of the advisory locks that holders keep
SINGLE_FLIGHT = 0x10C4  # class of the advisory locks that guard drains and wallets
TURNS = 0x7042  # class of the advisory locks under which one customer's submissions are taken

BEAT_EVERY_S = 1.0
STANDS_STILL_S = 15.0  # a holder that was silent for so long has lost its right
WATCH_GAP_S = (
    5.0  # who has not looked for so long stood still itself, or the database did: it has seen nobody's silence
)

ALIVE_HOLDERS = text(
    "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND classid = :holders AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
).bindparams(holders=HOLDERS)

OTHERS = text(
    "SELECT pid, backend_start::text AS since, state_change::text AS last_word FROM pg_stat_activity WHERE pid IN ("
    " SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = :holders AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    ") AND pid <> pg_backend_pid() AND state_change IS NOT NULL"  # which Postgres shows of one's own role only
).bindparams(holders=HOLDERS)

# The connection that holds the lock, and all others of its process, which database.py gives one name of its own.
END_PROCESS = text(
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity, ("
    " SELECT application_name AS name FROM pg_stat_activity"
    " WHERE pid = :pid AND backend_start::text = :since AND state_change::text = :last_word"
    ") AS silent WHERE pid = :pid OR (application_name = silent.name AND starts_with(silent.name, :prefix))"
).bindparams(prefix=f"{PROCESS} ")


class Silence:
    """Since when others have been silent, by our own clock. Pure."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str, str], float] = {}
        self._looked_s = float("-inf")

    def too_long(self, last_words: Iterable[tuple[int, str, str]], now_s: float) -> list[tuple[int, str, str]]:
        """Who has said nothing new for STANDS_STILL_S, of (process, its beginning, its last word)."""
        before = self._seen if now_s - self._looked_s <= WATCH_GAP_S else {}
        self._looked_s = now_s
        self._seen = {words: before.get(words, now_s) for words in last_words}
        return [words for words, since_s in self._seen.items() if now_s - since_s >= STANDS_STILL_S]


class Holder:
    """This process, as the ledger knows it. The number changes when the database lost our connection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._number = 0
        self._checked_s = float("-inf")
        self._silence = Silence()
        self._owed: list[tuple[TextClause, dict[str, Any]]] = []
        self._closed = threading.Event()
        self._beating: threading.Thread | None = None

    def number(self) -> int:
        """The number under which this process takes leases now."""
        with self._lock:
            fresh = time.monotonic() - self._checked_s < 2 * BEAT_EVERY_S
            if self._connection is None or not (fresh or self._beat(self._connection)):
                self._renew()
            return self._number

    def owe(self, statement: TextClause, parameters: dict[str, Any]) -> None:
        """What could not be given back (a disk that is full, no connection to be had) is, as soon as that can be written. Who
        loses his number owes nothing any more: his leases are free.
        """
        with self._lock:
            if self._connection is not None:
                self._owed.append((statement, parameters))

    def close(self) -> None:
        """Give all leases up."""
        self._closed.set()
        with self._lock:
            if self._connection is not None:
                self._let_go(self._connection)

    def _renew(self) -> None:
        connection = asking(self._engine)
        self._number = secrets.randbelow(2**31 - 1) + 1
        connection.execute(select(func.pg_advisory_lock(HOLDERS, bindparam("n", self._number))))
        self._connection, self._checked_s = connection, time.monotonic()
        if self._beating is None:
            self._beating = threading.Thread(target=self._keep_beating, name="holder", daemon=True)
            self._beating.start()

    def _keep_beating(self) -> None:
        while not self._closed.wait(BEAT_EVERY_S):
            with self._lock:
                if self._connection is not None and self._beat(self._connection):
                    self._pay(self._connection)

    def _beat(self, connection: Connection) -> bool:
        """Say a word, and see who says none. False when the database has lost our connection."""
        try:
            rows = list(connection.execute(OTHERS))
            self._checked_s = time.monotonic()
            others = [(row.pid, row.since, row.last_word) for row in rows]
            for pid, since, last_word in self._silence.too_long(others, self._checked_s):
                _end_process(connection, pid, since, last_word)
        except GONE:
            self._let_go(connection)
            return False
        return True

    def _pay(self, connection: Connection) -> None:
        try:
            while self._owed:
                connection.execute(*self._owed[0])
                self._owed.pop(0)
        except GONE as error:  # again with the next word, which finds out whether the connection is lost
            log.warning("effects_not_given_back_yet", owed=len(self._owed), error=str(error))

    def _let_go(self, connection: Connection) -> None:
        self._connection = None
        self._owed.clear()
        connection.invalidate()
        connection.close()


def _end_process(connection: Connection, pid: int, since: str, last_word: str) -> None:
    try:
        ended = connection.scalar(END_PROCESS, {"pid": pid, "since": since, "last_word": last_word})
    except ProgrammingError as error:  # another role's, which ours may not end: nothing is wrong with our connection
        log.error("holder_stands_still_and_may_not_be_ended", backend=pid, error=str(error.orig))
        return
    log.warning("holder_stands_still", backend=pid, silent_s=STANDS_STILL_S, connections_ended=ended)


@contextmanager
def single_flight(engine: Engine, name: str) -> Iterator[bool]:
    """True when this is the only one at work under that name, False when another one is. Nothing waits."""
    key = zlib.crc32(name.encode()) - 2**31
    with asking(engine) as connection:
        got = bool(connection.scalar(select(func.pg_try_advisory_lock(SINGLE_FLIGHT, key))))
        try:
            yield got
        finally:
            if got:
                _unlock(connection, key)


@contextmanager
def one_at_a_time(engine: Engine, name: str) -> Iterator[None]:
    """As single_flight, but waits for its turn."""
    key = zlib.crc32(name.encode()) - 2**31
    with asking(engine) as connection:
        connection.execute(select(func.pg_advisory_lock(SINGLE_FLIGHT, key)))
        try:
            yield
        finally:
            _unlock(connection, key)


def _unlock(connection: Connection, key: int) -> None:
    try:
        connection.execute(select(func.pg_advisory_unlock(SINGLE_FLIGHT, key)))
    except GONE:
        connection.invalidate()  # the lock went with the connection
