"""Brings the ledger's tables up to date: `supervisor db upgrade`; for a developer also
the command `alembic -x url=postgresql+psycopg://... upgrade head`.

Several processes may try at once: an advisory lock lets one go first. A table that is
locked by a long transaction makes the migration fail soon: a change that waits for a
table makes all others of that table wait behind it.
"""

import time
from typing import Any

import structlog
from alembic import context
from sqlalchemy import Connection, NullPool, create_engine, text

from supervisor_tasks.ledger.tables import METADATA

log = structlog.get_logger()

MIGRATIONS_LOCK = 0xA1E3
ASK_AGAIN_S = 0.2
# An index of a large table takes minutes, and blocks no writer. After deadlock_timeout,
# by default 1 s, Postgres cancels an autovacuum that a lock waits for: a wait of no
# more than that would end before, each time.
OPTIONS = (
    "-c statement_timeout=60min -c lock_timeout=1500ms -c maintenance_work_mem=256MB"
)

# What processes of the release before still use, and a later release drops: no model
# has it.
LEFT = {("table", "accounts"), ("column", "benchmark_results.due_at")}


def is_compared(item: Any, name: str | None, kind: str, _: bool, __: object) -> bool:
    """Whether `alembic check` compares this with the models."""
    return (
        kind,
        name if kind == "table" else f"{getattr(item, 'table', '')}.{name}",
    ) not in LEFT


def take_turn(connection: Connection) -> None:
    """Wait until no other process migrates. A query that waits for the lock would be an
    open transaction, for which CREATE INDEX CONCURRENTLY of the other process would
    wait, so this one asks again and again. The lock ends with the other process.
    """
    told = False
    while not connection.scalar(
        text("SELECT pg_try_advisory_lock(:key)"), {"key": MIGRATIONS_LOCK}
    ):
        connection.commit()
        if not told:
            log.info(
                "migration_waits", reason="another process migrates the same database"
            )
            told = True
        time.sleep(ASK_AGAIN_S)
    connection.commit()


def url_of_database() -> str:
    """The URL that the caller gave, in SQLAlchemy's form. Raises ValueError if there is
    none; a retry does not help.
    """
    given = context.get_x_argument(as_dictionary=True).get("url")
    url = context.config.attributes.get("url") or given
    if not isinstance(url, str):
        raise ValueError(
            "found no URL; expected that of a database, as `alembic -x url=postgresql+psycopg://... check`"
        )
    return url


# No pool: a connection that came back to one after an error would keep the lock, and
# the next try would wait for itself.
engine = create_engine(
    url_of_database(), poolclass=NullPool, connect_args={"options": OPTIONS}
)
with engine.connect() as connection:
    take_turn(connection)
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        transaction_per_migration=True,
        include_object=is_compared,
    )
    with context.begin_transaction():
        context.run_migrations()
