"""Events are stored under the names of what was observed.

No worker may run beside this migration: one of the version before would write events
under the old names after it. The gRPC process and the reporter write no events, and can
run.
"""

import json

import sqlalchemy as sa
from alembic import op

from supervisor_tasks.ledger.migrations import online

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None
old_processes_work = False  # they write and read the old names

NAMES = {
    "ChainSaw": "ChainStatusObserved",
    "Carried": "EffectCompleted",
    "Overlooked": "EffectMissing",
    "CalledBack": "CallbackReceived",
    "Recognised": "SlurmJobIdentified",
    "Adopted": "ExistingSlurmJobAdopted",
    "SlurmWaiting": "SlurmPendingObserved",
    "SlurmStarted": "SlurmRunningObserved",
    "SlurmEnded": "SlurmCompleted",
    "SlurmLost": "SlurmJobMissing",
    "SubmissionForgotten": "SubmissionLostBySlurm",
    "SubmitUnclear": "SubmitOutcomeUnknown",
    "SubmitNotRun": "SubmitNotExecuted",
    "SubmitNotFound": "SubmissionNotFound",
    "OperatorDenied": "OperatorConfirmedNotSubmitted",
    "OperatorForgot": "OperatorAbandonedEffect",
    "OperatorSettled": "OperatorClosedJob",
}
# Entries of `details`, by the new name of their event.
ENTRIES = (
    ("CallbackReceived", "look_in_s", "poll_delay_s"),
    ("SubmitOutcomeUnknown", "strange", "unparsed"),
    ("Claimed", "signed_here", "claim_known_to_ledger"),
)
RENAME = """
    UPDATE events SET name = names.new
    FROM (SELECT unnest(CAST(:old AS text[])) AS old, unnest(CAST(:new AS text[])) AS new) AS names
    WHERE events.name = names.old AND id > :after AND id <= :up_to
"""
RENAME_ENTRY = """
    UPDATE events SET details = details - :old || jsonb_build_object(CAST(:new AS text), details -> :old)
    WHERE name = :event AND jsonb_exists(details, :old) AND id > :after AND id <= :up_to
"""
# The findings in the reports of sweeps name the events that they led to.
RENAME_IN_REPORTS = sa.text(
    """
    UPDATE sweeps SET report = jsonb_set(report, '{findings}', (
        SELECT COALESCE(jsonb_agg(
            CASE WHEN jsonb_exists(finding, 'done') THEN jsonb_set(finding, '{done}', (
                SELECT COALESCE(jsonb_agg(COALESCE(CAST(:names AS jsonb) -> done, to_jsonb(done)) ORDER BY place), '[]')
                FROM jsonb_array_elements_text(finding -> 'done') WITH ORDINALITY AS events (done, place)
            )) ELSE finding END ORDER BY number
        ), '[]')
        FROM jsonb_array_elements(report -> 'findings') WITH ORDINALITY AS findings (finding, number)
    )) WHERE jsonb_exists(report, 'findings')
    """
)


def upgrade() -> None:
    entries = [
        (RENAME_ENTRY, {"event": event, "old": old, "new": new})
        for event, old, new in ENTRIES
    ]
    online.for_each_batch(
        "events", (RENAME, {"old": list(NAMES), "new": list(NAMES.values())}), *entries
    )
    op.get_bind().execute(RENAME_IN_REPORTS, {"names": json.dumps(NAMES)})


def downgrade() -> None:
    entries = [
        (RENAME_ENTRY, {"event": event, "old": new, "new": old})
        for event, old, new in ENTRIES
    ]
    online.for_each_batch(
        "events", *entries, (RENAME, {"old": list(NAMES.values()), "new": list(NAMES)})
    )
    op.get_bind().execute(
        RENAME_IN_REPORTS,
        {"names": json.dumps({new: old for old, new in NAMES.items()})},
    )
