"""The ledger's database: how a process connects to it, and the error when it does not answer."""

import secrets
import time
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry

from supervisor_tasks.config.embedded_servers import database_url
from supervisor_tasks.config.settings import Settings
from supervisor_tasks.errors import TransientError

# A thread holds at most two connections, a guard and a transaction. It holds three if it also has the lock of the
# wallet or of the scan; only one thread of each exclusive run can have that. Together: 16 threads, 6 more connections, and the
# holder's.
CONNECTIONS = 40
PROCESS = "supervisor"  # all connections of one process have one name, which begins with this word
CONNECTING = {
    "connect_timeout": 5,
    # The client notices within 20 s that a server is gone, even if it has not closed the connection.
    **{"keepalives_idle": 5, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 15_000},
}
RESTED_S = 1.0  # a connection that was used more recently is not pinged
READ_ONLY = "25006"  # SQLSTATE of a standby that is about to take over


class LedgerUnavailableError(TransientError):
    """The database does not answer, or cannot write now. Retry later: open work is still stored."""


def open_engine(
    settings: Settings, connections: int = CONNECTIONS, url: str | None = None, options: str = ""
) -> Engine:
    """The engine of the ledger's database. Errors hide the parameters, which may be scripts or signed bytes.

    Without `url` it is the settings' database, and an embedded Postgres is started if they name none. `options` are those
    of the server for each connection, as `-c name=value`.
    """
    given = {"options": options} if options else {}
    engine = create_engine(
        url or database_url(settings),
        pool_size=connections,
        max_overflow=0,
        pool_use_lifo=True,  # few connections do most of the work, and have prepared their statements
        hide_parameters=True,
        connect_args=CONNECTING | {"application_name": f"{PROCESS} {secrets.token_hex(8)}"} | given,
    )
    event.listen(engine, "handle_error", _translate)
    _ping_what_rested(engine)
    return engine


def read_connection(engine: Engine) -> Connection:
    """A connection for queries and for single statements, in autocommit. Each is a transaction of its own, and takes one
    round trip instead of three. Also, psycopg forgets its prepared statements whenever a transaction is rolled back.
    """
    return engine.connect().execution_options(isolation_level="AUTOCOMMIT")


def _ping_what_rested(engine: Engine) -> None:
    """Ping a connection only if it was not used for RESTED_S. SQLAlchemy's pool_pre_ping does it before each use, which
    is one round trip in three.
    """

    def checkin(_: object, entry: ConnectionPoolEntry) -> None:
        entry.info["used_s"] = time.monotonic()

    def checkout(connection: Any, entry: ConnectionPoolEntry, _: object) -> None:
        if time.monotonic() - entry.info.get("used_s", time.monotonic()) < RESTED_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except psycopg.Error as error:
            raise InvalidatePoolError from error  # the pool opens a new connection

    event.listen(engine, "checkin", checkin)
    event.listen(engine, "checkout", checkout)


def _translate(context: ExceptionContext) -> LedgerUnavailableError | None:
    """Turn the errors of a database that is away into a LedgerUnavailableError of one line. Other errors stay."""
    original = context.original_exception
    away = isinstance(original, psycopg.OperationalError | psycopg.InterfaceError)
    if context.is_pre_ping or not (away or getattr(original, "sqlstate", None) == READ_ONLY):
        return None
    return LedgerUnavailableError(f"the ledger's database: {_first_line(original)}")


def _first_line(error: BaseException | None) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
