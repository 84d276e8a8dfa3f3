"""Blocks that were read, and what a reorganisation puts in question."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "blocks",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "number"),
    )
    op.add_column("jobs", sa.Column("heard_block", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("jobs", sa.Column("doubt_until", sa.BigInteger(), nullable=True))
    op.execute("UPDATE jobs SET heard_block = chain_block")
    op.create_index("jobs_by_heard_block", "jobs", ["cluster", "heard_block"])
    op.create_index(
        "jobs_in_doubt", "jobs", ["cluster", "doubt_until"], postgresql_where=sa.text("doubt_until IS NOT NULL")
    )
    op.create_index("transactions_by_block", "transactions", ["cluster", "block_number"])


def downgrade() -> None:
    op.drop_index("transactions_by_block", "transactions")
    op.drop_index("jobs_in_doubt", "jobs")
    op.drop_index("jobs_by_heard_block", "jobs")
    op.drop_column("jobs", "doubt_until")
    op.drop_column("jobs", "heard_block")
    op.drop_table("blocks")
