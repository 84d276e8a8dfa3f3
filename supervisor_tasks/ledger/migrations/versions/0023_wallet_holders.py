"""Which cluster works with which wallet."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    op.create_table(
        "wallet_holders",
        sa.Column("cluster", sa.Text, primary_key=True),
        sa.Column("chain_id", sa.BigInteger, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("shared", sa.Boolean, nullable=False),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
    )
    op.create_index(
        "wallet_holders_by_address", "wallet_holders", ["chain_id", "address"]
    )


def downgrade() -> None:
    op.drop_table("wallet_holders")
