"""Who carries an effect out, and who does a drain.

A holder is a process that works on effects: a random number under which it keeps a Postgres advisory lock for as long
as it lives. The lock ends with the process's connection, so the leases of a killed worker are free at once, and nobody
needs a heartbeat. Single-flight work is guarded by advisory locks of the same life.
"""

import secrets
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, bindparam, func, select, text
from sqlalchemy.exc import DBAPIError

from supervisor_tasks.ledger.database import LedgerUnavailableError

GONE = (DBAPIError, LedgerUnavailableError)
HOLDERS = 0x5EED  # class of the advisory locks that holders keep
CHECK_EVERY_S = 1.0  # whether the database still has our connection
SINGLE_FLIGHT = 0x10C4  # class of the advisory locks that guard drains and wallets

ALIVE_HOLDERS = text(
    "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND classid = :holders AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
).bindparams(holders=HOLDERS)


class Holder:
    """This process, as the ledger knows it. The number changes when the database lost our connection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._number = 0
        self._checked_s = float("-inf")

    def number(self) -> int:
        """The number under which this process takes leases now."""
        with self._lock:
            fresh = time.monotonic() - self._checked_s < CHECK_EVERY_S
            if self._connection is None or not (fresh or self._holds(self._connection)):
                self._renew()
            self._checked_s = self._checked_s if fresh else time.monotonic()
            return self._number

    def close(self) -> None:
        """Give all leases up."""
        with self._lock:
            if self._connection is not None:
                self._connection.invalidate()
                self._connection.close()
                self._connection = None

    def _holds(self, connection: Connection) -> bool:
        try:
            connection.execute(text("SELECT 1"))
        except GONE:
            connection.invalidate()
            connection.close()
            return False
        return True

    def _renew(self) -> None:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._number = secrets.randbelow(2**31 - 1) + 1
        connection.execute(select(func.pg_advisory_lock(HOLDERS, bindparam("n", self._number))))
        self._connection = connection


@contextmanager
def single_flight(engine: Engine, name: str) -> Iterator[bool]:
    """True when this is the only one at work under that name, False when another one is. Nothing waits."""
    key = zlib.crc32(name.encode()) - 2**31
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
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
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
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
