"""The runs of a job in SLURM, of which a requeue begins a new one; how often its size was put back to what was paid for, and
how it ends when the supervisor has SLURM end it.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("runs", JSONB(), server_default=sa.text("'[]'"), nullable=False))
    op.add_column("jobs", sa.Column("put_back", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("jobs", sa.Column("stop_status", sa.SmallInteger(), nullable=True))
    op.add_column("jobs", sa.Column("stop_reason", sa.Text(), nullable=True))


def downgrade() -> None:
    for column in ("stop_reason", "stop_status", "put_back", "runs"):
        op.drop_column("jobs", column)
