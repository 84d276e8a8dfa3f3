"""Two events, and the purposes of two kinds of transaction, have the names of the code.

No worker, and no `supervisor job settle`, of the version before may run beside this
migration: they would write the old names after it. The gRPC process and the reporter
write neither, and can run.
"""

from supervisor_tasks.ledger.migrations import online

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None
old_processes_work = False  # they write and read the old names

EVENTS = {
    "OperatorClosedJob": "OperatorSettledJob",
    "SubmissionDenied": "FalseSlurmId",
}
PURPOSES = {"refuse": "return-job", "fill": "fill-nonce"}
RENAMED = (("events", "name", EVENTS), ("transactions", "purpose", PURPOSES))
RENAME = (
    "UPDATE {table} SET {column} = names.new"
    " FROM (SELECT unnest(CAST(:old AS text[])) AS old, unnest(CAST(:new AS text[])) AS new) AS names"
    " WHERE {column} = names.old AND id > :after AND id <= :up_to"
)


def upgrade() -> None:
    for table, column, names in RENAMED:
        _rename(table, column, names)


def downgrade() -> None:
    for table, column, names in RENAMED:
        _rename(table, column, {new: old for old, new in names.items()})


def _rename(table: str, column: str, names: dict[str, str]) -> None:
    online.for_each_batch(
        table,
        (
            RENAME.format(table=table, column=column),
            {"old": list(names), "new": list(names.values())},
        ),
    )
