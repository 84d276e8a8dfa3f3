"""How often the contract refused what an effect wrote: counted by itself, whatever else failed in between."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("effects", sa.Column("refusals", sa.Integer(), server_default=sa.text("0"), nullable=False))


def downgrade() -> None:
    op.drop_column("effects", "refusals")
