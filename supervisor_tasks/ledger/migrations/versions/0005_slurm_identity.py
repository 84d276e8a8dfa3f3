"""How SLURM's jobs are told apart, and one lease of an effect from the next."""

import sqlalchemy as sa

from supervisor_tasks.ledger.migrations import online

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    online.add_columns(
        "jobs", sa.Column("slurm_submit_s", sa.BigInteger(), nullable=True)
    )
    online.add_columns(
        "effects",
        sa.Column(
            "takings", sa.BigInteger(), server_default=sa.text("0"), nullable=False
        ),
    )


def downgrade() -> None:
    online.drop_columns("effects", "takings")
    online.drop_columns("jobs", "slurm_submit_s")
