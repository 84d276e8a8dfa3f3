"""When what an alarm is about was seen last."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    op.add_column(
        "alarms",
        sa.Column(
            "seen_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
    )


def downgrade() -> None:
    op.drop_column("alarms", "seen_at")
