"""Kinds of effect and periodic tasks are stored under the names of what they do.

The whole fleet must be stopped, but for the reporter: workers, the clock and the gRPC
process of the version before would write rows under the old names after this migration.
"""

import sqlalchemy as sa
from alembic import op

from supervisor_tasks.ledger.migrations import online

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None
old_processes_work = False  # they write and read the old names

KINDS = {
    "witness": "poll_slurm",
    "refuse": "return_job",
    "tell_user": "notify_customer",
}
# Events name the kind of an effect by its name in the code.
NAMED = {
    "WITNESS": "POLL_SLURM",
    "REFUSE": "RETURN_JOB",
    "TELL_USER": "NOTIFY_CUSTOMER",
}
TASKS = {
    "witness": "poll_jobs",
    "nudge": "dispatch_due_effects",
    "watch": "check_alarms",
    "track": "collect_receipts",
    "look_at_nodes": "refresh_inventory",
}
NAMES = "(SELECT unnest(CAST(:old AS text[])) AS old, unnest(CAST(:new AS text[])) AS new) AS names"
PART = "id > :after AND id <= :up_to"
RENAME_KINDS = f"UPDATE effects SET kind = names.new FROM {NAMES} WHERE kind = names.old AND {PART}"  # noqa: S608
RENAME_IN_EVENTS = (
    f"UPDATE events SET details = details || jsonb_build_object('kind', names.new) FROM {NAMES}"  # noqa: S608
    " WHERE events.name IN ('EffectMissing', 'EffectCompleted', 'OperatorAbandonedEffect')"
    f" AND details ->> 'kind' = names.old AND {PART}"
)
RENAME_TICKS = sa.text(
    f"UPDATE ticks SET name = names.new || substr(name, length(names.old) + 1) FROM {NAMES}"  # noqa: S608
    " WHERE name IN (names.old, names.old || ' finished')"
)


def upgrade() -> None:
    for table, statement, names in (
        ("effects", RENAME_KINDS, KINDS),
        ("events", RENAME_IN_EVENTS, NAMED),
    ):
        online.for_each_batch(
            table, (statement, {"old": list(names), "new": list(names.values())})
        )
    op.get_bind().execute(
        RENAME_TICKS, {"old": list(TASKS), "new": list(TASKS.values())}
    )


def downgrade() -> None:
    op.get_bind().execute(
        RENAME_TICKS, {"old": list(TASKS.values()), "new": list(TASKS)}
    )
    for table, statement, names in (
        ("events", RENAME_IN_EVENTS, NAMED),
        ("effects", RENAME_KINDS, KINDS),
    ):
        online.for_each_batch(
            table, (statement, {"old": list(names.values()), "new": list(names)})
        )
