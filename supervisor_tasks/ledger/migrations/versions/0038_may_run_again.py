"""The end of a job waits for its report until SLURM must reject that its owner requeues
it. The jobs that have ended by now are reported as before.
"""

import sqlalchemy as sa

from supervisor_tasks.ledger.migrations import online

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    online.add_columns(
        "jobs",
        sa.Column(
            "may_run_again",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
        ),
    )


def downgrade() -> None:
    online.drop_columns("jobs", "may_run_again")
