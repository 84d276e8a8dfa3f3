"""Which callbacks were proven by the site's key, and which are about no job of the
ledger.
"""

import sqlalchemy as sa

from supervisor_tasks.ledger.migrations import online

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None
old_processes_work = True


def upgrade() -> None:
    online.add_columns(
        "callbacks",
        sa.Column(
            "proof", sa.Text(), server_default=sa.text("'no key'"), nullable=False
        ),
        sa.Column(
            "strange", sa.Boolean(), server_default=sa.text("false"), nullable=False
        ),
    )
    online.create_index("callbacks_strange", "callbacks", ["cluster"], where="strange")


def downgrade() -> None:
    online.drop_index("callbacks_strange", "callbacks")
    online.drop_columns("callbacks", "strange", "proof")
