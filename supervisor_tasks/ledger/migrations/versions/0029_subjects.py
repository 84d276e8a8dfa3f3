"""Effects have a subject: a job, a customer who needs an account, or a benchmark run.

The rows of the table `accounts` are copied. Processes of the release before go on with
the table, and a trigger copies what they add. Their dispatchers do not know the kind of
the copies, and must not send messages for them: an open copy is due in COPIES_WAIT, and
a worker of this release that starts makes it due at once. Such a start also opens the
effect of a run that is under way. A release later, the table, the trigger and the
column `benchmark_results.due_at` are dropped.
"""

import sqlalchemy as sa
from alembic import op

from supervisor_tasks.ledger.migrations import online

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None
old_processes_work = True

COPIES_WAIT = "interval '30 days'"
COLUMNS = "cluster, kind, subject, due_at, attempts, last_error, created_at, done_at"
ONCE = "ON CONFLICT (cluster, kind, subject) WHERE subject IS NOT NULL DO NOTHING"
COPY = f"""
    INSERT INTO effects ({COLUMNS})
    SELECT cluster, 'account', customer, now() + CASE WHEN done_at IS NULL THEN {COPIES_WAIT} ELSE interval '0 s' END,
        attempts, last_error, requested_at, done_at
    FROM accounts {ONCE}
"""  # noqa: S608  only constants
TRIGGER = f"""
    CREATE OR REPLACE FUNCTION account_effect() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO effects (cluster, kind, subject, due_at)
        VALUES (NEW.cluster, 'account', NEW.customer, now() + {COPIES_WAIT}) {ONCE};
        RETURN NULL;
    END $$;
    CREATE OR REPLACE TRIGGER account_effect AFTER INSERT ON accounts FOR EACH ROW EXECUTE FUNCTION account_effect();
"""  # noqa: S608  only constants
RETURNED = """
    INSERT INTO accounts (cluster, customer, requested_at, attempts, last_error, done_at)
    SELECT cluster, subject, created_at, attempts, last_error, done_at FROM effects WHERE kind = 'account'
    ON CONFLICT (cluster, customer) DO UPDATE SET done_at = EXCLUDED.done_at, last_error = EXCLUDED.last_error
"""


def upgrade() -> None:
    online.add_columns("effects", sa.Column("subject", sa.Text(), nullable=True))
    online.drop_not_null("effects", "job_id")
    online.add_check(
        "effects_one_subject", "effects", "(job_id IS NULL) <> (subject IS NULL)"
    )
    online.create_index(
        "effects_by_subject",
        "effects",
        ["cluster", "kind", "subject"],
        where="subject IS NOT NULL",
        unique=True,
    )
    op.execute(TRIGGER)
    op.execute(COPY)


def downgrade() -> None:
    op.execute(
        "DROP TRIGGER account_effect ON accounts; DROP FUNCTION account_effect()"
    )
    op.execute(RETURNED)
    op.execute("DELETE FROM effects WHERE subject IS NOT NULL")
    online.drop_index("effects_by_subject", "effects")
    online.drop_columns("effects", "subject")
    online.set_not_null("effects", "job_id")
