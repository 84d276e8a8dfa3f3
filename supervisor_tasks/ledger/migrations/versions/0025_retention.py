"""Indexes by which old rows are found."""

from supervisor_tasks.ledger.migrations import online

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    online.create_index(
        "jobs_cold_by_age",
        "jobs",
        ["cluster", "updated_at", "job_id"],
        where="state IN ('SETTLED', 'REFUSED')",
    )
    online.create_index(
        "jobs_settled_with_script",
        "jobs",
        ["cluster", "updated_at"],
        where="state = 'SETTLED' AND script IS NOT NULL",
    )
    online.create_index(
        "transactions_without_a_job",
        "transactions",
        ["cluster", "done_at"],
        where="job_id IS NULL AND done_at IS NOT NULL",
    )


def downgrade() -> None:
    online.drop_index("transactions_without_a_job", "transactions")
    online.drop_index("jobs_settled_with_script", "jobs")
    online.drop_index("jobs_cold_by_age", "jobs")
