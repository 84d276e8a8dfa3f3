"""What the wallet remembers: all signatures of a transaction, nonces that were somebody else's, and the ledger's mark."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

FREE = "state NOT IN ('REVERTED', 'FOREIGN')"
FREE_BEFORE = "state <> 'REVERTED'"


def upgrade() -> None:
    op.add_column("transactions", sa.Column("contested_at", sa.DateTime(timezone=True), nullable=True))
    _intent_index(FREE)
    op.create_table(
        "signatures",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("transaction_id", sa.BigInteger(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("max_fee_wei", sa.Numeric(78, 0), nullable=False),
        sa.Column("priority_fee_wei", sa.Numeric(78, 0), nullable=False),
        sa.Column("head", sa.BigInteger(), nullable=False),
        sa.Column("signed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["transaction_id"], ["transactions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("hash"),
    )
    op.create_index("signatures_by_transaction", "signatures", ["transaction_id"])
    op.execute(
        "INSERT INTO signatures (hash, transaction_id, raw, max_fee_wei, priority_fee_wei, head, signed_at)"
        " SELECT hash, id, raw, max_fee_wei, priority_fee_wei, 0, created_at FROM transactions"
    )
    op.create_table(
        "marks",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("mark", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("cluster"),
    )


def downgrade() -> None:
    op.drop_table("marks")
    op.drop_table("signatures")
    op.execute("UPDATE transactions SET state = 'REVERTED' WHERE state = 'FOREIGN'")
    _intent_index(FREE_BEFORE)
    op.drop_column("transactions", "contested_at")


def _intent_index(where: str) -> None:
    op.drop_index("transactions_intent", table_name="transactions")
    op.create_index(
        "transactions_intent", "transactions", ["cluster", "intent"], unique=True, postgresql_where=sa.text(where)
    )
