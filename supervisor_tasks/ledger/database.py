"""The ledger's database: the connections of a process."""

import json
import time
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, InvalidatePoolError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection, QueuePool

from supervisor_tasks.errors import LedgerUnavailableError
from supervisor_tasks.ledger.driver import CONNECTING, process_name, unavailable

# A task's thread holds at most two connections, a lock and a transaction. It holds
# three if it also has the lock of the wallet or of the scan. Only one thread of each
# exclusive run can have that. The 16 such threads and the holder's connection take 39.
# The threads that carry out effects (48) hold one for the time of a statement, and wait
# for their turn.
MAX_CONNECTIONS = 40
WAIT_FOR_CONNECTION_S = 30.0
DATABASE_ERRORS = (DBAPIError, LedgerUnavailableError)
RESTED_S = 1.0  # a connection that was used more recently is not pinged
_CLOCK = text("SELECT EXTRACT(EPOCH FROM clock_timestamp())::float8")


class _Pool(QueuePool):
    """A pool whose connections are all in use for WAIT_FOR_CONNECTION_S raises
    LedgerUnavailableError: the database hangs, and a retry helps.
    """

    # SQLAlchemy names a pool's logger after its module, and silences its own modules
    _sqla_logger_namespace = "sqlalchemy.pool.QueuePool"

    def connect(self) -> PoolProxiedConnection:
        try:
            return super().connect()
        except PoolTimeoutError as error:
            raise LedgerUnavailableError(
                f"the ledger's database: each of {self.size()} connections has been in"
                f" use for {WAIT_FOR_CONNECTION_S:g} s"
            ) from error


def open_engine(
    url: str, connections: int = MAX_CONNECTIONS, options: str = ""
) -> Engine:
    """The engine of the ledger's database. Errors hide the parameters, which may be
    scripts or signed bytes.

    `url` has SQLAlchemy's form. `options` are those of the server for each connection,
    as `-c name=value`.
    """
    given = {"options": options} if options else {}
    engine = create_engine(
        url,
        poolclass=_Pool,
        pool_size=connections,
        pool_timeout=WAIT_FOR_CONNECTION_S,
        max_overflow=0,
        # few connections do most of the work, and have prepared their statements
        pool_use_lifo=True,
        hide_parameters=True,
        json_deserializer=_read_json,
        connect_args=CONNECTING | {"application_name": process_name()} | given,
    )
    event.listen(engine, "handle_error", _translate)
    _ping_idle_connections(engine)
    return engine


def _read_json(stored: bytes) -> Any:
    """Read a JSON value as Postgres sends it, in UTF-8. json.loads would detect the
    encoding of each value, which takes as long as reading a short one.
    """
    return json.loads(str(stored, "utf-8"))


def read_connection(engine: Engine) -> Connection:
    """A connection for queries and for single statements, in autocommit. Each is a
    transaction of its own, and takes one round trip instead of three. Also, psycopg
    drops its prepared statements whenever a transaction is rolled back. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    return engine.connect().execution_options(isolation_level="AUTOCOMMIT")


def clock_s(engine: Engine) -> float:
    """Return the database's time (Unix time). Raises LedgerUnavailableError, when the
    database does not answer; a retry helps.
    """
    with read_connection(engine) as connection:
        return float(connection.execute(_CLOCK).scalar_one())


def _ping_idle_connections(engine: Engine) -> None:
    """Ping a connection only if it was not used for RESTED_S. SQLAlchemy's
    pool_pre_ping does it before each use, which is one round trip in three.
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
    """Turn the errors of a database that is away into a LedgerUnavailableError of one
    line. Other errors stay.
    """
    return None if context.is_pre_ping else unavailable(context.original_exception)
