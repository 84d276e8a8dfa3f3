"""The inbox: what plugins said, on disk before it is acknowledged."""

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from grpc_callbacks.validation import StatusReport
from supervisor_tasks.errors import TransientError
from supervisor_tasks.ledger.models import Callback

CALLBACKS = Callback.metadata.tables["callbacks"]
CONNECTIONS = 8
TIMEOUT_S = 2  # the plugins wait for 30 s; sshd and people wait for less


class InboxClosedError(TransientError):
    """The database does not take it; the caller shall come again."""


class Inbox:
    """Where callbacks of one cluster are kept. Threads may share it."""

    def __init__(self, database_url: str, cluster: str) -> None:
        self._cluster = cluster
        self._engine: Engine = create_engine(
            database_url,
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_timeout=TIMEOUT_S,
            connect_args={"connect_timeout": TIMEOUT_S, "options": f"-c statement_timeout={TIMEOUT_S * 1000}"},
        )
        self._insert = insert(CALLBACKS).on_conflict_do_nothing(constraint="callbacks_content")

    def store(self, report: StatusReport, peer: str) -> None:
        """Commit a callback; a repeat changes nothing. Raises InboxClosedError (come again)."""
        row = {
            "cluster": self._cluster,
            "job_id": report.job_id,
            "slurm_id": report.slurm_id,
            "status": report.status,
            "duration_s": report.duration_s,
            "exit_code": report.exit_code,
            "peer": peer,
        }
        for attempt in (1, 2):
            try:
                with self._engine.begin() as connection:
                    connection.execute(self._insert, row)
            except (DBAPIError, PoolTimeoutError) as error:
                # A connection that was kept over a restart of the database fails once.
                if attempt == 1 and getattr(error, "connection_invalidated", False):
                    continue
                raise InboxClosedError("the callback could not be stored") from error
            return

    def is_open(self) -> bool:
        """Whether the database would take a callback."""
        try:
            with self._engine.connect() as connection:
                connection.execute(text("SELECT 1 FROM callbacks LIMIT 1"))
        except (DBAPIError, PoolTimeoutError):
            return False
        return True

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()
