"""The runs of a job in SLURM: a requeue begins another one. How often the job's size was
put back to what was paid for. How the job ends when the supervisor has SLURM end it.
"""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from supervisor_tasks.ledger.migrations import online

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    online.add_columns(
        "jobs",
        sa.Column("runs", JSONB(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column(
            "put_back", sa.Integer(), server_default=sa.text("0"), nullable=False
        ),
        sa.Column("stop_status", sa.SmallInteger(), nullable=True),
        sa.Column("stop_reason", sa.Text(), nullable=True),
    )


def downgrade() -> None:
    online.drop_columns("jobs", "stop_reason", "stop_status", "put_back", "runs")
