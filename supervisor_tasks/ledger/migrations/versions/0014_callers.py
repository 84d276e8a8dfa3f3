"""Which callbacks were proven by the site's key, and which are about no job of the ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("callbacks", sa.Column("proof", sa.Text(), server_default=sa.text("'no key'"), nullable=False))
    op.add_column("callbacks", sa.Column("strange", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.create_index("callbacks_strange", "callbacks", ["cluster"], postgresql_where=sa.text("strange"))


def downgrade() -> None:
    op.drop_index("callbacks_strange", table_name="callbacks")
    op.drop_column("callbacks", "strange")
    op.drop_column("callbacks", "proof")
