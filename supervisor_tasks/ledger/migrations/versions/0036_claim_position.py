"""Jobs have the place of their claim on chain: a top-up before it is part of the claim's
minutes. Where a job has none, each top-up counts, as before.
"""

import sqlalchemy as sa

from supervisor_tasks.ledger.migrations import online

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None
old_processes_work = True

COLUMNS = ("claim_block", "claim_log_index")


def upgrade() -> None:
    for name in COLUMNS:
        online.add_columns(
            "jobs",
            sa.Column(name, sa.BigInteger(), server_default="0", nullable=False),
        )


def downgrade() -> None:
    online.drop_columns("jobs", *COLUMNS)
