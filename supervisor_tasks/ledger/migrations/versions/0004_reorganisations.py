"""Blocks that were read, and what a reorganisation puts in question."""

import sqlalchemy as sa
from alembic import op

from supervisor_tasks.ledger.migrations import online

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    op.create_table(
        "blocks",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "number"),
        if_not_exists=True,
    )
    online.add_columns(
        "jobs",
        sa.Column(
            "heard_block", sa.BigInteger(), server_default=sa.text("0"), nullable=False
        ),
        sa.Column("doubt_until", sa.BigInteger(), nullable=True),
    )
    # No block is kept yet, so a reorganisation can reach only jobs that go on. Of the
    # others, 0 is as good as the block.
    op.execute("UPDATE jobs SET heard_block = chain_block WHERE state <> 'SETTLED'")
    online.create_index("jobs_by_heard_block", "jobs", ["cluster", "heard_block"])
    online.create_index(
        "jobs_in_doubt",
        "jobs",
        ["cluster", "doubt_until"],
        where="doubt_until IS NOT NULL",
    )
    online.create_index(
        "transactions_by_block", "transactions", ["cluster", "block_number"]
    )


def downgrade() -> None:
    online.drop_index("transactions_by_block", "transactions")
    online.drop_index("jobs_in_doubt", "jobs")
    online.drop_index("jobs_by_heard_block", "jobs")
    online.drop_columns("jobs", "doubt_until", "heard_block")
    op.drop_table("blocks")
