"""How far a benchmark is, is its state, as in the code.

The whole fleet must be stopped, but for the reporter: its processes of the version
before would go on to read the old column.
"""

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None
old_processes_work = False  # they read and write the old column

OLD, NEW = "stage", "state"


def upgrade() -> None:
    op.alter_column("benchmark_results", OLD, new_column_name=NEW)


def downgrade() -> None:
    op.alter_column("benchmark_results", NEW, new_column_name=OLD)
