"""Silences: until a time, an operator wants no messages about an alarm."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None
old_processes_work = True

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "alarm_silences",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("alarm", sa.Text(), nullable=False),
        sa.Column("begun_at", TIME, server_default=sa.text("now()"), nullable=False),
        sa.Column("ends_at", TIME, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "alarm"),
    )


def downgrade() -> None:
    op.drop_table("alarm_silences")
