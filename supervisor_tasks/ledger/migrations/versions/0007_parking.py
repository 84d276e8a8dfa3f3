"""Parked effects: what was seen, how often it failed and since when."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("effects", sa.Column("evidence", postgresql.JSONB(astext_type=sa.Text()), nullable=True))
    op.add_column("effects", sa.Column("unforeseen", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("effects", sa.Column("failing_since", sa.DateTime(timezone=True), nullable=True))
    # What was parked by an earlier version counts as failing since then.
    op.execute("UPDATE effects SET failing_since = parked_at WHERE done_at IS NULL AND parked_at IS NOT NULL")
    op.create_index(
        "effects_failing",
        "effects",
        ["cluster", "failing_since"],
        unique=False,
        postgresql_where=sa.text("done_at IS NULL AND failing_since IS NOT NULL"),
    )
    op.create_index("effects_by_job", "effects", ["cluster", "job_id"], unique=False)
    op.create_index(
        "transactions_by_job",
        "transactions",
        ["cluster", "job_id"],
        unique=False,
        postgresql_where=sa.text("job_id IS NOT NULL"),
    )
    op.add_column(
        "jobs", sa.Column("settled_by_operator", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )


def downgrade() -> None:
    op.drop_column("jobs", "settled_by_operator")
    op.drop_index("transactions_by_job", table_name="transactions")
    op.drop_index("effects_by_job", table_name="effects")
    op.drop_index("effects_failing", table_name="effects")
    op.drop_column("effects", "failing_since")
    op.drop_column("effects", "unforeseen")
    op.drop_column("effects", "evidence")
