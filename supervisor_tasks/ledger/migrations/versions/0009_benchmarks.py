"""Benchmark runs, and what they measured."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    op.create_table(
        "benchmark_runs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("hardware", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("cancel_reason", sa.Text(), nullable=True),
        sa.Column(
            "asked_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "benchmark_runs_by_cluster", "benchmark_runs", ["cluster", "id"], unique=False
    )
    op.create_index(
        "benchmark_runs_one_open",
        "benchmark_runs",
        ["cluster"],
        unique=True,
        postgresql_where=sa.text("state IN ('ASKED', 'RUNNING')"),
    )
    op.create_table(
        "benchmark_results",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("benchmark", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("job_name", sa.Text(), nullable=False),
        sa.Column("options", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("script", sa.Text(), nullable=False),
        sa.Column("lost", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("called_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("slurm_id", sa.BigInteger(), nullable=True),
        sa.Column(
            "slurm_state", sa.Text(), server_default=sa.text("''"), nullable=False
        ),
        sa.Column(
            "exit_status", sa.BigInteger(), server_default=sa.text("0"), nullable=False
        ),
        sa.Column(
            "due_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("missing_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "labels",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column(
            "left_out",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column(
            "notes",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'[]'"),
            nullable=False,
        ),
        sa.Column("tool", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("output", sa.LargeBinary(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column(
            "cleaned", sa.Boolean(), server_default=sa.text("false"), nullable=False
        ),
        sa.ForeignKeyConstraint(["run_id"], ["benchmark_runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run_id", "benchmark", name="benchmark_results_one_a_run"),
    )
    op.create_index(
        "benchmark_results_measured",
        "benchmark_results",
        ["cluster", "benchmark", "id"],
        unique=False,
        postgresql_where=sa.text("stage = 'MEASURED'"),
    )


def downgrade() -> None:
    op.drop_index(
        "benchmark_results_measured",
        table_name="benchmark_results",
        postgresql_where=sa.text("stage = 'MEASURED'"),
    )
    op.drop_table("benchmark_results")
    op.drop_index(
        "benchmark_runs_one_open",
        table_name="benchmark_runs",
        postgresql_where=sa.text("state IN ('ASKED', 'RUNNING')"),
    )
    op.drop_index("benchmark_runs_by_cluster", table_name="benchmark_runs")
    op.drop_table("benchmark_runs")
