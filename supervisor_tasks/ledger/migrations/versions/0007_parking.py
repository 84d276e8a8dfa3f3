"""Parked effects: what was seen, how often it failed and since when."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from supervisor_tasks.ledger.migrations import online

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    online.add_columns(
        "effects",
        sa.Column("evidence", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column(
            "unforeseen", sa.Integer(), server_default=sa.text("0"), nullable=False
        ),
        sa.Column("failing_since", sa.DateTime(timezone=True), nullable=True),
    )
    # What was parked by an earlier version counts as failing since then.
    op.execute(
        "UPDATE effects SET failing_since = parked_at WHERE done_at IS NULL AND parked_at IS NOT NULL"
    )
    failing = "done_at IS NULL AND failing_since IS NOT NULL"
    online.create_index(
        "effects_failing", "effects", ["cluster", "failing_since"], where=failing
    )
    online.create_index("effects_by_job", "effects", ["cluster", "job_id"])
    online.create_index(
        "transactions_by_job",
        "transactions",
        ["cluster", "job_id"],
        where="job_id IS NOT NULL",
    )
    online.add_columns(
        "jobs",
        sa.Column(
            "settled_by_operator",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
        ),
    )


def downgrade() -> None:
    online.drop_columns("jobs", "settled_by_operator")
    online.drop_index("transactions_by_job", "transactions")
    online.drop_index("effects_by_job", "effects")
    online.drop_index("effects_failing", "effects")
    online.drop_columns("effects", "failing_since", "unforeseen", "evidence")
