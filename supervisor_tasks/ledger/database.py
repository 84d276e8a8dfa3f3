"""The ledger's database: how it is reached, and what is raised when it is not."""

import secrets

import psycopg
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext

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
READ_ONLY = "25006"  # SQLSTATE of a standby that is about to take over


class LedgerUnavailableError(TransientError):
    """The database does not answer, or not now; what was to be done is still written down."""


def open_engine(settings: Settings, connections: int = CONNECTIONS) -> Engine:
    """The ledger's database. Parameters are hidden in errors: scripts and signed bytes are among them."""
    engine = create_engine(
        database_url(settings),
        pool_size=connections,
        max_overflow=0,
        pool_pre_ping=True,
        hide_parameters=True,
        connect_args=CONNECTING | {"application_name": f"{PROCESS} {secrets.token_hex(8)}"},
    )
    event.listen(engine, "handle_error", _translate)
    return engine


def _translate(context: ExceptionContext) -> LedgerUnavailableError | None:
    """A database that is away is nobody's fault: it raises LedgerUnavailableError, of one line."""
    original = context.original_exception
    away = isinstance(original, psycopg.OperationalError | psycopg.InterfaceError)
    if context.is_pre_ping or not (away or getattr(original, "sqlstate", None) == READ_ONLY):
        return None
    return LedgerUnavailableError(f"the ledger's database: {_first_line(original)}")


def _first_line(error: BaseException | None) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
