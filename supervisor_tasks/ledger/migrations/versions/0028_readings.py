"""Readings: a tick can carry the number that was read, such as the chain's head or the
length of a queue.
"""

import sqlalchemy as sa

from supervisor_tasks.ledger.migrations import online

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    online.add_columns("periodic_runs", sa.Column("number", sa.BigInteger()))


def downgrade() -> None:
    online.drop_columns("periodic_runs", "number")
