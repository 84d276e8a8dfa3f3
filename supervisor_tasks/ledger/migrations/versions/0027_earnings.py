"""An index of the transactions that earned, so that the earnings of a day are read
without all transactions.
"""

from supervisor_tasks.ledger.migrations import online

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    online.create_index(
        "transactions_earned",
        "transactions",
        ["cluster", "done_at"],
        where="earned > 0",
    )


def downgrade() -> None:
    online.drop_index("transactions_earned", "transactions")
