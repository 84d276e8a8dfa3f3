"""The alarms' incidents, and the messages that tell of them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None
old_processes_work = True

TIME = sa.DateTime(timezone=True)
NOW = sa.text("now()")


def upgrade() -> None:
    op.create_table(
        "alarm_incidents",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("alarm", sa.Text(), nullable=False),
        sa.Column(
            "key",
            sa.Text(),
            server_default=sa.text("gen_random_uuid()::text"),
            nullable=False,
        ),
        sa.Column("details", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("raised_at", TIME, server_default=NOW, nullable=False),
        sa.Column("raises", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("cleared_at", TIME, nullable=True),
        sa.Column("closed_at", TIME, nullable=True),
        sa.Column("due_at", TIME, server_default=NOW, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "alarm_incidents_open",
        "alarm_incidents",
        ["cluster", "alarm"],
        unique=True,
        postgresql_where=sa.text("closed_at IS NULL AND alarm <> 'test'"),
    )
    op.create_index(
        "alarm_incidents_due",
        "alarm_incidents",
        ["cluster", "due_at"],
        postgresql_where=sa.text("due_at IS NOT NULL"),
    )
    op.create_table(
        "alarm_messages",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("incident_id", sa.BigInteger(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
        sa.Column("due_at", TIME, server_default=NOW, nullable=False),
        sa.Column(
            "attempts", sa.Integer(), server_default=sa.text("0"), nullable=False
        ),
        sa.Column("failing_since", TIME, nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("sent_at", TIME, nullable=True),
        sa.Column("done_at", TIME, nullable=True),
        sa.Column("parked_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(
            ["incident_id"], ["alarm_incidents.id"], ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("incident_id", "channel", "kind"),
    )
    op.create_index(
        "alarm_messages_due",
        "alarm_messages",
        ["cluster", "due_at"],
        postgresql_where=sa.text("done_at IS NULL"),
    )
    # An alarm that is on already is told as soon as there is a channel.
    op.execute(
        "INSERT INTO alarm_incidents (cluster, alarm, details, raised_at) SELECT cluster, name, details, raised_at FROM alarms"
    )


def downgrade() -> None:
    op.drop_table("alarm_messages")
    op.drop_table("alarm_incidents")
