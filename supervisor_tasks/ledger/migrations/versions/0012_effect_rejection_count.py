"""How often the contract refused what an effect wrote. Other failures of the effect are
not counted there.
"""

import sqlalchemy as sa

from supervisor_tasks.ledger.migrations import online

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    online.add_columns(
        "effects",
        sa.Column(
            "refusals", sa.Integer(), server_default=sa.text("0"), nullable=False
        ),
    )


def downgrade() -> None:
    online.drop_columns("effects", "refusals")
