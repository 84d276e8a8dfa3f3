"""How SLURM's jobs are told apart, and one lease of an effect from the next."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("slurm_submit_s", sa.BigInteger(), nullable=True))
    op.add_column("effects", sa.Column("takings", sa.BigInteger(), server_default=sa.text("0"), nullable=False))


def downgrade() -> None:
    op.drop_column("effects", "takings")
    op.drop_column("jobs", "slurm_submit_s")
