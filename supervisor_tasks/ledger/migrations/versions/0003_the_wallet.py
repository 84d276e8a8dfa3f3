"""What the wallet remembers: all signatures of a transaction, nonces that another writer
used, and the ledger's mark.
"""

import sqlalchemy as sa
from alembic import op

from supervisor_tasks.ledger.migrations import online

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
old_processes_work = True

FREE = "state NOT IN ('REVERTED', 'FOREIGN')"
FREE_BEFORE = "state <> 'REVERTED'"
FIRST_SIGNATURES = """
    INSERT INTO signatures (hash, transaction_id, raw, max_fee_wei, priority_fee_wei, head, signed_at)
    SELECT hash, id, raw, max_fee_wei, priority_fee_wei, 0, created_at FROM transactions
    WHERE id > :after AND id <= :up_to ON CONFLICT DO NOTHING
"""


def upgrade() -> None:
    online.add_columns(
        "transactions",
        sa.Column("contested_at", sa.DateTime(timezone=True), nullable=True),
    )
    _intent_index(FREE)
    op.create_table(
        "signatures",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("transaction_id", sa.BigInteger(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("max_fee_wei", sa.Numeric(78, 0), nullable=False),
        sa.Column("priority_fee_wei", sa.Numeric(78, 0), nullable=False),
        sa.Column("head", sa.BigInteger(), nullable=False),
        sa.Column(
            "signed_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("hash"),
        if_not_exists=True,
    )
    online.for_each_batch("transactions", (FIRST_SIGNATURES, {}))
    online.add_foreign_key(
        "signatures_transaction_id_fkey",
        "signatures",
        "transaction_id",
        "transactions",
        ondelete="CASCADE",
    )
    online.create_index("signatures_by_transaction", "signatures", ["transaction_id"])
    op.create_table(
        "marks",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("mark", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("cluster"),
        if_not_exists=True,
    )


def downgrade() -> None:
    op.drop_table("marks")
    op.drop_table("signatures")
    op.execute("UPDATE transactions SET state = 'REVERTED' WHERE state = 'FOREIGN'")
    _intent_index(FREE_BEFORE)
    online.drop_columns("transactions", "contested_at")


def _intent_index(where: str) -> None:
    online.replace_index(
        "transactions_intent",
        "transactions",
        ["cluster", "intent"],
        where=where,
        unique=True,
    )
