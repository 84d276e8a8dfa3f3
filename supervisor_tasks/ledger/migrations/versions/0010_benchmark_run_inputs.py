"""Which machines a benchmark run was of, and under which prices and labels."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    op.add_column("benchmark_runs", sa.Column("machines", sa.Text(), nullable=True))
    op.add_column("benchmark_runs", sa.Column("terms", sa.Text(), nullable=True))
    op.add_column(
        "benchmark_runs",
        sa.Column("anew", sa.Boolean(), server_default=sa.text("true"), nullable=False),
    )


def downgrade() -> None:
    for name in ("anew", "terms", "machines"):
        op.drop_column("benchmark_runs", name)
