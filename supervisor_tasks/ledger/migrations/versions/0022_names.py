"""Tables and columns have the names of what they hold. Only names change: no row is
rewritten.

The whole fleet must be stopped, but for the reporter: no process of the version before
finds the new columns. Each table is locked for a moment; the migration fails when
another transaction holds one for longer.
"""

from alembic import op

from supervisor_tasks.ledger.migrations.online import end_autovacuum

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None
old_processes_work = False  # they write and read the old names

TABLES = {
    "ticks": "periodic_runs",
    "marks": "instance_tags",
    "taken_marks": "adopted_tags",
    "others_claims": "foreign_claims",
}
# By the new name of the table.
COLUMNS = {
    "jobs": {
        "heard_block": "last_event_block",
        "doubt_until": "reorg_deadline_block",
        "looks": "poll_count",
        "message": "status_message",
    },
    "effects": {
        "wakes": "generation",
        "takings": "lease_token",
        "woken_at": "notified_at",
        "unforeseen": "unexpected_failures",
        "refusals": "contract_rejections",
    },
    "callbacks": {"strange": "unknown_job"},
    "instance_tags": {"mark": "tag"},
    "adopted_tags": {"mark": "tag", "taken_at": "adopted_at"},
    "foreign_claims": {"mark": "tag"},
    "benchmark_runs": {
        "machines": "hardware_digest",
        "terms": "pricing_digest",
        "anew": "forced",
    },
}
INDEXES = {
    "jobs_by_heard_block": "jobs_by_last_event_block",
    "callbacks_strange": "callbacks_unknown_job",
} | {f"{old}_pkey": f"{new}_pkey" for old, new in TABLES.items()}


def _rename_index(old: str, new: str) -> None:
    op.execute(f"ALTER INDEX {old} RENAME TO {new}")


def upgrade() -> None:
    end_autovacuum(*TABLES, *sorted(COLUMNS.keys() - TABLES.values()))
    for old, new in TABLES.items():
        op.rename_table(old, new)
    for table, columns in COLUMNS.items():
        for old, new in columns.items():
            op.alter_column(table, old, new_column_name=new)
    for old, new in INDEXES.items():
        _rename_index(old, new)


def downgrade() -> None:
    for old, new in INDEXES.items():
        _rename_index(new, old)
    for table, columns in COLUMNS.items():
        for old, new in columns.items():
            op.alter_column(table, new, new_column_name=old)
    for old, new in TABLES.items():
        op.rename_table(new, old)
