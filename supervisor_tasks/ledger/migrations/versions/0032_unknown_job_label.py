"""The counter of callbacks calls those about a job that the ledger does not know
`unknown_job`, as the rest of the program does, and not `strange`.

The whole fleet must be stopped, but for the reporter: its processes of the version
before would go on to count under the old label.
"""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None
old_processes_work = False  # they write the old label


def _rename(old: str, new: str) -> None:
    for table in ("counters", "counter_increments"):
        statement = sa.text(
            f"UPDATE {table} SET label = :new WHERE name = 'callbacks' AND label = :old"  # noqa: S608  our own tables
        )
        op.get_bind().execute(statement, {"old": old, "new": new})


def upgrade() -> None:
    _rename("strange", "unknown_job")


def downgrade() -> None:
    _rename("unknown_job", "strange")
