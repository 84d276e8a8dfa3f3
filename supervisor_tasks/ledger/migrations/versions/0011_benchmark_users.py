"""Under whom a benchmark was handed to SLURM: the setting may be another one by the
time it ends.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    op.add_column("benchmark_results", sa.Column("run_as", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("benchmark_results", "run_as")
