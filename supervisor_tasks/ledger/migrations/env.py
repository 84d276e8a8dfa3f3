"""Brings the ledger's tables up to date: `supervisor db upgrade`; for a developer also the command `alembic`.

Several processes may try at once: an advisory lock lets one go first. A table that is locked by a long transaction makes the
migration fail soon, not the supervisor wait for ever.
"""

from alembic import context
from sqlalchemy import create_engine, text

from supervisor_tasks.embedded import database_url
from supervisor_tasks.ledger.models import Base
from supervisor_tasks.settings import load_or_exit, or_exit

MIGRATIONS_LOCK = 0xA1E3

with or_exit():
    url = context.config.attributes.get("url") or database_url(load_or_exit())
engine = create_engine(url, connect_args={"options": "-c statement_timeout=10min"})
with engine.connect() as connection:
    connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": MIGRATIONS_LOCK})
    connection.execute(text("SET lock_timeout = '5s'"))  # from here on: another migration may take longer
    connection.commit()
    context.configure(connection=connection, target_metadata=Base.metadata, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
