"""The event of earlier runs is stored under the name of its class. Reports of sweeps say
since when a side is unreachable, as the alarm about it does.

The whole fleet must be stopped, but for the reporter: its processes of the version
before would go on to store the old names.
"""

import sqlalchemy as sa
from alembic import op

from supervisor_tasks.ledger.migrations import online

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None
old_processes_work = False  # they read and write the old names

OLD_EVENT, NEW_EVENT = "EarlierRunsTold", "EarlierRunsReported"
OLD_KEY, NEW_KEY = "blind_since_s", "unreachable_since_s"
RENAME_EVENT = """
    UPDATE events SET name = :new WHERE name = :old AND id > :after AND id <= :up_to
"""
RENAME_KEY = sa.text(
    "UPDATE reconciliations SET report = report - CAST(:old AS text)"
    " || jsonb_build_object(CAST(:new AS text), report -> :old) WHERE jsonb_exists(report, :old)"
)


def upgrade() -> None:
    online.for_each_batch(
        "events", (RENAME_EVENT, {"old": OLD_EVENT, "new": NEW_EVENT})
    )
    op.get_bind().execute(RENAME_KEY, {"old": OLD_KEY, "new": NEW_KEY})


def downgrade() -> None:
    online.for_each_batch(
        "events", (RENAME_EVENT, {"old": NEW_EVENT, "new": OLD_EVENT})
    )
    op.get_bind().execute(RENAME_KEY, {"old": NEW_KEY, "new": OLD_KEY})
