"""Two alarms about an answer of another party say that it rejects, and not that it
refuses.

The whole fleet must be stopped, but for the reporter: its processes of the version
before would store the alarms under the old names after this migration.
"""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None
old_processes_work = False  # they write and read the old names

ALARMS = {
    "registration_refused": "registration_rejected",
    "benchmark_user_refused": "benchmark_user_rejected",
}
# A fact of a condition has the name of its alarm.
FACTS = {f"condition.{old}": f"condition.{new}" for old, new in ALARMS.items()}
# table and column: the names
COLUMNS = {
    ("alarms", "name"): ALARMS,
    ("alarm_incidents", "alarm"): ALARMS,
    ("alarm_silences", "alarm"): ALARMS,
    ("facts", "name"): FACTS,
}


def _rename(table: str, column: str, old: str, new: str) -> None:
    statement = sa.text(
        f"UPDATE {table} SET {column} = :new WHERE {column} = :old"  # noqa: S608  our own tables
    )
    op.get_bind().execute(statement, {"old": old, "new": new})


def upgrade() -> None:
    for (table, column), names in COLUMNS.items():
        for old, new in names.items():
            _rename(table, column, old, new)


def downgrade() -> None:
    for (table, column), names in COLUMNS.items():
        for old, new in names.items():
            _rename(table, column, new, old)
