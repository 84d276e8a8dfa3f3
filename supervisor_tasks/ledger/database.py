"""The ledger's database: how it is reached, and what is raised when it is not."""

import secrets
import time
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry

from supervisor_tasks.embedded import database_url
from supervisor_tasks.errors import TransientError
from supervisor_tasks.settings import Settings

# A thread holds two at most, a guard and a transaction; or three, where it has the wallet or the scan to itself as well: one of
# each drain. 16 threads, 6 more connections, and the holder's.
CONNECTIONS = 40
PROCESS = "supervisor"  # the first word of the name that all connections of one process have in common
CONNECTING = {
    "connect_timeout": 5,
    # A server that is gone without a word is noticed within 20 s.
    **{"keepalives_idle": 5, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 15_000},
}
RESTED_S = 1.0  # a connection that was used since is not asked again whether it is still there
READ_ONLY = "25006"  # SQLSTATE of a standby that is about to take over


class LedgerUnavailableError(TransientError):
    """The database does not answer, or not now; what was to be done is still written down."""


def open_engine(settings: Settings, connections: int = CONNECTIONS) -> Engine:
    """The ledger's database. Parameters are hidden in errors: scripts and signed bytes are among them."""
    engine = create_engine(
        database_url(settings),
        pool_size=connections,
        max_overflow=0,
        hide_parameters=True,
        connect_args=CONNECTING | {"application_name": f"{PROCESS} {secrets.token_hex(8)}"},
    )
    event.listen(engine, "handle_error", _translate)
    _ping_what_rested(engine)
    return engine


def asking(engine: Engine) -> Connection:
    """A connection for questions. Each is a transaction of its own, which takes one round trip and not three; and psycopg
    forgets its prepared statements whenever a transaction is rolled back.
    """
    return engine.connect().execution_options(isolation_level="AUTOCOMMIT")


def _ping_what_rested(engine: Engine) -> None:
    """SQLAlchemy's pool_pre_ping asks before each use, which is a round trip in three; here it is done after a rest."""

    def checkin(_: object, entry: ConnectionPoolEntry) -> None:
        entry.info["used_s"] = time.monotonic()

    def checkout(connection: Any, entry: ConnectionPoolEntry, _: object) -> None:
        if time.monotonic() - entry.info.get("used_s", time.monotonic()) < RESTED_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except psycopg.Error as error:
            raise InvalidatePoolError from error  # the pool connects anew

    event.listen(engine, "checkin", checkin)
    event.listen(engine, "checkout", checkout)


def _translate(context: ExceptionContext) -> LedgerUnavailableError | None:
    """A database that is away is nobody's fault: it raises LedgerUnavailableError, of one line."""
    original = context.original_exception
    away = isinstance(original, psycopg.OperationalError | psycopg.InterfaceError)
    if context.is_pre_ping or not (away or getattr(original, "sqlstate", None) == READ_ONLY):
        return None
    return LedgerUnavailableError(f"the ledger's database: {_first_line(original)}")


def _first_line(error: BaseException | None) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
