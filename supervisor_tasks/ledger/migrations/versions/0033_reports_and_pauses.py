"""The pause of the deletion of old rows is a switch, as the two other pauses are. Reports
of sweeps name the discrepancies, and the jobs that need the operator, as the rest of the
program does. Beat's periodic run has its name.

The whole fleet must be stopped, but for the reporter: its processes of the version
before would delete rows whose deletion is paused, and go on to store the old names.
"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None
old_processes_work = False  # they read and write the old names

FACT = "retention.held"
SWITCH = "retention_paused"
KEYS = {"findings": "discrepancies", "held": "needs_operator"}
RUN_BEFORE, RUN = "clock", "beat"


def _rename_key(old: str, new: str) -> None:
    statement = sa.text(
        "UPDATE reconciliations SET report = report - CAST(:old AS text)"
        " || jsonb_build_object(CAST(:new AS text), report -> :old) WHERE jsonb_exists(report, :old)"
    )
    op.get_bind().execute(statement, {"old": old, "new": new})


def _rename_run(old: str, new: str) -> None:
    statement = sa.text("UPDATE periodic_runs SET name = :new WHERE name = :old")
    op.get_bind().execute(statement, {"old": old, "new": new})


def upgrade() -> None:
    names = {"fact": FACT, "switch": SWITCH}
    to_switch = sa.text(
        "INSERT INTO switches (cluster, name, reason, set_at)"
        " SELECT cluster, :switch, value, since FROM facts WHERE name = :fact"
    )
    op.get_bind().execute(to_switch, names)
    op.get_bind().execute(sa.text("DELETE FROM facts WHERE name = :fact"), names)
    for old, new in KEYS.items():
        _rename_key(old, new)
    _rename_run(RUN_BEFORE, RUN)


def downgrade() -> None:
    names = {"fact": FACT, "switch": SWITCH}
    to_fact = sa.text(
        "INSERT INTO facts (cluster, name, value, since)"
        " SELECT cluster, :fact, reason, set_at FROM switches WHERE name = :switch"
    )
    op.get_bind().execute(to_fact, names)
    op.get_bind().execute(sa.text("DELETE FROM switches WHERE name = :switch"), names)
    for old, new in KEYS.items():
        _rename_key(new, old)
    _rename_run(RUN, RUN_BEFORE)
