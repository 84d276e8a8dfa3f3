"""Locks for work that one process does at a time: Postgres advisory locks, which end with
the connection that took them.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from sqlalchemy import Connection, Engine, func, select

from supervisor_tasks.ledger.database import DATABASE_ERRORS, read_connection
from supervisor_tasks.ledger.lock_names import EXCLUSIVE, LockName

log = structlog.get_logger()


@contextmanager
def try_advisory_lock(engine: Engine, name: LockName) -> Iterator[bool]:
    """Take the lock of that name. Yields True if this caller has it, False if another
    one has it. It never waits. Raises LedgerUnavailableError, when the database does
    not answer; a retry helps.
    """
    key = zlib.crc32(name.encode()) - 2**31
    with read_connection(engine) as connection:
        got = bool(connection.scalar(select(func.pg_try_advisory_lock(EXCLUSIVE, key))))
        try:
            yield got
        finally:
            if got:
                _unlock(connection, key)


@contextmanager
def advisory_lock(engine: Engine, name: LockName) -> Iterator[None]:
    """Take the lock of that name, as try_advisory_lock, but wait until it is free.
    Raises LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    key = zlib.crc32(name.encode()) - 2**31
    with read_connection(engine) as connection:
        connection.execute(select(func.pg_advisory_lock(EXCLUSIVE, key)))
        try:
            yield
        finally:
            _unlock(connection, key)


def _unlock(connection: Connection, key: int) -> None:
    try:
        held = connection.scalar(select(func.pg_advisory_unlock(EXCLUSIVE, key)))
    except DATABASE_ERRORS:
        connection.invalidate()  # the lock ended with the connection
        return
    if not held:
        connection.invalidate()
        log.error(
            "lock_was_not_held",
            advice="DATABASE_URL must lead to Postgres itself and not to a pooler of transactions: try `supervisor doctor`",
        )
