"""The database's driver: how a process connects, and the error when the database does
not answer. It needs no SQLAlchemy.

Beat asks the ledger one question, and SQLAlchemy with our tables would take it 23 MB.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

from supervisor_tasks.connections.postgres_url import for_libpq
from supervisor_tasks.errors import LedgerLoginRejectedError, LedgerUnavailableError

# all connections of one process have one name, which begins with this word
PROCESS = "supervisor"
CONNECTING: dict[str, Any] = {
    "connect_timeout": 5,
    # The client notices within 20 s that a server is gone, even if it has not closed
    # the connection.
    **{
        "keepalives_idle": 5,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
    },
}
READ_ONLY = "25006"  # SQLSTATE of a standby that is about to take over
# Postgres's own words; the driver gives no SQLSTATE for a connection that failed
LOGIN_REJECTED = ("authentication failed", "no pg_hba.conf entry", "does not exist")
PREPARED_AFTER = 1  # executions of a statement, before the server keeps its plan


def answering_within(timeout_s: int) -> dict[str, Any]:
    """Return the options of a connection that a process asks something every few
    seconds. A statement ends about this time after its begin, also if the server's host
    is gone: the kernel notices that (libpq; no effect on Unix sockets).
    """
    return {
        "connect_timeout": timeout_s,
        "options": f"-c statement_timeout={timeout_s * 1000}",
        "tcp_user_timeout": timeout_s * 1000,
        "keepalives_idle": timeout_s,
        "keepalives_interval": 1,
        "keepalives_count": 2,
    }


def process_name() -> str:
    """A new name for all connections of a process."""
    return f"{PROCESS} {secrets.token_hex(8)}"


def unavailable(error: BaseException | None) -> LedgerUnavailableError | None:
    """The error of one line for a database that is away or rejects our login; None for
    any other error.
    """
    away = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if not (away or getattr(error, "sqlstate", None) == READ_ONLY):
        return None
    first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    is_rejected = any(words in first_line for words in LOGIN_REJECTED)
    kind = LedgerLoginRejectedError if is_rejected else LedgerUnavailableError
    return kind(f"the ledger's database: {first_line}")


class DriverConnection:
    """One connection for statements that are safe to repeat. Not for several
    threads.
    """

    def __init__(self, url: str) -> None:
        """`url` has SQLAlchemy's form."""
        self._url = for_libpq(url)
        self._name = process_name()
        self._connection: psycopg.Connection[dict[str, Any]] | None = None

    def execute(
        self, statement: str, parameters: Mapping[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        """Run one statement in a transaction of its own; returns its rows. It is
        repeated once, over a new connection, if the connection of the last statement is
        broken. Raises LedgerUnavailableError, when the database does not answer; a
        retry helps.
        """
        is_old = self._connection is not None
        try:
            return self._execute(statement, parameters)
        except LedgerUnavailableError:
            if not is_old:
                raise
            return self._execute(statement, parameters)

    def _execute(
        self, statement: str, parameters: Mapping[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        try:
            cursor = self._open().execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            self.close()
            away = unavailable(error)
            if away is None:
                raise
            raise away from error

    def close(self) -> None:
        """Close the connection; the next statement opens another one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _open(self) -> "psycopg.Connection[dict[str, Any]]":
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
                self._url,
                autocommit=True,
                prepare_threshold=PREPARED_AFTER,
                row_factory=dict_row,
                application_name=self._name,
                **CONNECTING,
            )
        return self._connection
