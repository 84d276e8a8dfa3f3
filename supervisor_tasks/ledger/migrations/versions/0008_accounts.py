"""Customers' accounts."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("customer", sa.Text(), nullable=False),
        sa.Column(
            "requested_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "due_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "attempts", sa.Integer(), server_default=sa.text("0"), nullable=False
        ),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("cluster", "customer"),
    )
    op.create_index(
        "accounts_due",
        "accounts",
        ["cluster", "due_at"],
        unique=False,
        postgresql_where=sa.text("done_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_index(
        "accounts_due",
        table_name="accounts",
        postgresql_where=sa.text("done_at IS NULL"),
    )
    op.drop_table("accounts")
