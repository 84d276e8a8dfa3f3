"""Counters: totals for the metrics, and what earlier rows add to them.

The totals begin with the jobs and transactions that the ledger has. Durations, gas and
credits of these are not known.
"""

import sqlalchemy as sa
from alembic import op

from supervisor_tasks.ledger.migrations import online

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None
old_processes_work = True

JOBS = """
    INSERT INTO counters (cluster, name, label, total)
    SELECT cluster, 'jobs_settled', CASE chain_status WHEN 4 THEN 'cancelled' WHEN 5 THEN 'finished' WHEN 6 THEN 'failed'
        WHEN 7 THEN 'out_of_credits' WHEN 8 THEN 'panicked' ELSE 'lost' END, count(*)
    FROM jobs WHERE state = 'SETTLED' GROUP BY 1, 2, 3
    UNION ALL
    SELECT cluster, 'jobs_claimed', '', count(*) FROM jobs GROUP BY 1
    UNION ALL
    SELECT cluster, 'billed_s', '', sum(elapsed_s / 60 * 60)
    FROM jobs WHERE state = 'SETTLED' AND chain_status <> 8 AND elapsed_s > 0 GROUP BY 1
"""
TRANSACTIONS = """
    INSERT INTO counters (cluster, name, label, total)
    SELECT cluster, 'transactions', lower(state), count(*)
    FROM transactions WHERE state IN ('MINED', 'REVERTED', 'FOREIGN') GROUP BY 1, 2, 3
"""


def upgrade() -> None:
    op.create_table(
        "counters",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("total", sa.Numeric(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "name", "label"),
        if_not_exists=True,
    )
    op.create_table(
        "counter_increments",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("amount", sa.Numeric(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        if_not_exists=True,
    )
    op.create_index(
        "counter_increments_by_cluster",
        "counter_increments",
        ["cluster"],
        if_not_exists=True,
    )
    online.add_columns(
        "transactions",
        sa.Column("gas_used", sa.BigInteger(), nullable=True),
        sa.Column("gas_price_wei", sa.Numeric(78, 0), nullable=True),
        sa.Column("earned", sa.Numeric(78, 0), nullable=True),
    )
    op.execute(JOBS)
    op.execute(TRANSACTIONS)


def downgrade() -> None:
    online.drop_columns("transactions", "earned", "gas_price_wei", "gas_used")
    op.drop_table("counter_increments")
    op.drop_table("counters")
