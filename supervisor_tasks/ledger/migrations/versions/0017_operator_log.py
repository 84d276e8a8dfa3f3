"""What operators changed: who, when, why."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    op.create_table(
        "operator_log",
        sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("operator", sa.Text, nullable=False),
        sa.Column("command", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("change", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text),
    )
    op.create_index("operator_log_by_cluster", "operator_log", ["cluster", "id"])


def downgrade() -> None:
    op.drop_table("operator_log")
