"""Changes of tables that a running fleet reads and writes, each in a transaction of its
own.

A change of a table's definition is an instant; an index is built without blocking
writers; rows are filled in small batches. A migration that was interrupted begins
again, so each change here is safe to repeat.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

BATCH_ROWS = 20_000  # rows in one transaction

_INVALID = sa.text(
    "SELECT count(*) FROM pg_index WHERE NOT indisvalid AND indexrelid = to_regclass(:name)"
)  # what is left of an interrupted build


def end_autovacuum(*tables: str) -> None:
    """End each autovacuum of the tables, and let none begin before the transaction
    ends. Unlike the locks of later changes, this one blocks no process of a fleet while
    it waits.
    """
    op.execute(f"LOCK TABLE {', '.join(tables)} IN SHARE UPDATE EXCLUSIVE MODE")


def add_columns(table: str, *columns: sa.Column[Any]) -> None:
    """Add columns that have no default, or a constant one: no row is written."""
    for column in columns:
        with op.get_context().autocommit_block():
            op.add_column(table, column, if_not_exists=True)


def drop_columns(table: str, *names: str) -> None:
    """Drop columns: no row is written."""
    for name in names:
        with op.get_context().autocommit_block():
            op.drop_column(table, name, if_exists=True)


def drop_not_null(table: str, column: str) -> None:
    """Let a column have no value: no row is read."""
    with op.get_context().autocommit_block():
        op.alter_column(table, column, nullable=True)


def add_check(name: str, table: str, condition: str) -> None:
    """Add a condition on rows. The rows that are there are checked without blocking
    writers.
    """
    with op.get_context().autocommit_block():
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}")
        op.execute(
            f"ALTER TABLE {table} ADD CONSTRAINT {name} CHECK ({condition}) NOT VALID"
        )
        op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}")


def set_not_null(table: str, column: str) -> None:
    """Require a value of a column. The rows that are there are checked without blocking
    writers: Postgres believes a valid condition, and reads no row again.
    """
    condition = f"{table}_{column}_not_null"
    add_check(condition, table, f"{column} IS NOT NULL")
    with op.get_context().autocommit_block():
        op.alter_column(table, column, nullable=False)
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT {condition}")


def create_index(
    name: str,
    table: str,
    columns: Sequence[str],
    *,
    where: str | None = None,
    unique: bool = False,
) -> None:
    """Build an index while others write to the table. It waits for the transactions
    that are open at its beginning.
    """
    with op.get_context().autocommit_block():
        if op.get_bind().scalar(_INVALID, {"name": name}):
            _drop(name, table)
        op.execute("SET lock_timeout = 0")  # its waits block no other transaction
        op.create_index(
            name,
            table,
            columns,
            unique=unique,
            postgresql_where=None if where is None else sa.text(where),
            postgresql_concurrently=True,
            if_not_exists=True,
        )
        op.execute("RESET lock_timeout")


def drop_index(name: str, table: str) -> None:
    """Drop an index while others use the table."""
    with op.get_context().autocommit_block():
        _drop(name, table)


def replace_index(
    name: str, table: str, columns: Sequence[str], *, where: str, unique: bool = False
) -> None:
    """Give an index another condition. The old one is in force until the new one is."""
    create_index(f"{name}_new", table, columns, where=where, unique=unique)
    with op.get_context().autocommit_block():
        _drop(name, table)
        op.execute(f"ALTER INDEX {name}_new RENAME TO {name}")


def add_foreign_key(
    name: str, table: str, column: str, other: str, *, ondelete: str
) -> None:
    """Add a reference to the column `id` of another table. The rows that are there are
    checked without blocking writers.
    """
    with op.get_context().autocommit_block():
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}")
        op.execute(
            f"ALTER TABLE {table} ADD CONSTRAINT {name} FOREIGN KEY ({column}) REFERENCES {other} (id)"
            f" ON DELETE {ondelete} NOT VALID"
        )
        op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}")


def for_each_batch(table: str, *statements: tuple[str, Mapping[str, Any]]) -> None:
    """Execute statements with their parameters for the rows of a table in the order of
    their `id`: those above :after, up to :up_to.
    """
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        last = connection.scalar(sa.text(f"SELECT COALESCE(max(id), 0) FROM {table}"))  # noqa: S608
        for after in range(0, last, BATCH_ROWS):
            for statement, parameters in statements:
                connection.execute(
                    sa.text(statement),
                    {"after": after, "up_to": after + BATCH_ROWS, **parameters},
                )


def _drop(name: str, table: str) -> None:
    op.execute("SET lock_timeout = 0")
    op.drop_index(name, table_name=table, postgresql_concurrently=True, if_exists=True)
    op.execute("RESET lock_timeout")
