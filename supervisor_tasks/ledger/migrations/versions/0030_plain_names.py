"""A table, columns, indexes and keys of facts have the names of what they hold. Only
names change.

The whole fleet must be stopped, but for the reporter: no process of the version before
finds the new columns. Each table is locked for a moment; the migration fails when
another transaction holds one for longer.
"""

import json

import sqlalchemy as sa
from alembic import op

from supervisor_tasks.ledger.migrations.online import end_autovacuum

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None
old_processes_work = False  # they write and read the old names

OLD_TABLE, NEW_TABLE = "sweeps", "reconciliations"
OLD_SEQUENCE, NEW_SEQUENCE = "sweeps_id_seq", "reconciliations_id_seq"
# By the new name of the table.
COLUMNS = {
    "reconciliations": {"suspects": "previous_doubts"},
    "transactions": {"intent": "idempotency_key", "contested_at": "nonce_conflict_at"},
}
INDEXES = {
    "jobs_cold_by_age": "jobs_final_by_age",
    "sweeps_by_cluster": "reconciliations_by_cluster",
    "sweeps_pkey": "reconciliations_pkey",
    "transactions_intent": "transactions_idempotency_key",
}
# A fact whose value is a JSON object, the old key and the new one.
KEYS = (
    ("provider.registration_record", "intent", "idempotency_key"),
    ("provider.registration", "odd", "warnings"),
)
FACTS = sa.text("SELECT cluster, value FROM facts WHERE name = :fact")
SET = sa.text(
    "UPDATE facts SET value = :value WHERE cluster = :cluster AND name = :fact"
)


def _rename_index(old: str, new: str) -> None:
    op.execute(f"ALTER INDEX {old} RENAME TO {new}")


def _rename_sequence(old: str, new: str) -> None:
    op.execute(f"ALTER SEQUENCE {old} RENAME TO {new}")


def _rename_key(fact: str, old: str, new: str) -> None:
    connection = op.get_bind()
    # not by jsonb, which takes no NUL: a node's message in a value can have one
    for cluster, stored in connection.execute(FACTS, {"fact": fact}).all():
        renamed = {
            new if name == old else name: value
            for name, value in json.loads(stored).items()
        }
        values = {"fact": fact, "cluster": cluster, "value": json.dumps(renamed)}
        connection.execute(SET, values)


def upgrade() -> None:
    end_autovacuum(OLD_TABLE, "transactions")
    op.rename_table(OLD_TABLE, NEW_TABLE)
    _rename_sequence(OLD_SEQUENCE, NEW_SEQUENCE)
    for table, columns in COLUMNS.items():
        for old, new in columns.items():
            op.alter_column(table, old, new_column_name=new)
    for old, new in INDEXES.items():
        _rename_index(old, new)
    for fact, old, new in KEYS:
        _rename_key(fact, old, new)


def downgrade() -> None:
    for fact, old, new in KEYS:
        _rename_key(fact, new, old)
    for old, new in INDEXES.items():
        _rename_index(new, old)
    for table, columns in COLUMNS.items():
        for old, new in columns.items():
            op.alter_column(table, new, new_column_name=old)
    _rename_sequence(NEW_SEQUENCE, OLD_SEQUENCE)
    op.rename_table(NEW_TABLE, OLD_TABLE)
