"""Facts have short names instead of sentences, and values that their codecs read."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None
old_processes_work = False  # they do not find the facts under their old names

NAMES = {
    "provider": "provider.address",
    "rpc endpoints": "chain.endpoints",
    "rewind wanted": "chain.rewind_wanted",
    "oldest open transaction": "condition.transaction_stuck",
    "first transaction refused oddly": "condition.first_transaction_oddly_refused",
    "the scan stands still at": "condition.scan_stands_still",
    "endpoints disagree about": "condition.endpoints_disagree",
    "in vain: claim": "claims.reverted.claim",
    "in vain: claim-cancelling": "claims.reverted.claim_cancelling",
    "in vain: claim-top-up": "claims.reverted.claim_top_up",
    "refused at the estimate: claim": "condition.refused.claim",
    "refused at the estimate: claim-cancelling": "condition.refused.claim_cancelling",
    "refused at the estimate: claim-top-up": "condition.refused.claim_top_up",
    "slurmctld runs since": "slurm.booted",
    "slurmctld silent before": "slurm.start",
    "slurm is": "slurm.cluster",
    "slurm seen": "slurm.other_cluster",
    "slurm remembers what ended": "slurm.min_job_age_s",
    "slurm accepted": "slurm.accepted",
    "SLURM is missed, tries": "slurm.failed_tries",
    "SLURM has answered since the start": "slurm.answered_since_start",
    "old benchmarks": "benchmark.old_wanted",
    "benchmark run without a step that succeeded": "condition.benchmark_stands_still",
    "benchmark user refused": "condition.benchmark_user_refused",
    "benchmark run's last error": "benchmark.last_error",
    "hardware": "provider.hardware",
    "nodes are not seen": "condition.nodes_not_seen",
    "why nodes are not seen": "provider.why_nodes_not_seen",
    "permission": "provider.permission",
    "standing": "provider.standing",
    "registration memory": "provider.registration_memory",
    "registration": "provider.registration",
    "registration wanted": "provider.registration_wanted",
    "measurement wanted": "provider.measurement_wanted",
    "sweep wanted": "sweep.wanted",
    "who tells of ends is missed": "condition.callbacks_away",
    "strange callbacks forgotten": "callbacks.strange_looked_at",
}
# A start of slurmctld was "BOOTED SILENT_S [FIRST_ID]".
START = """
    UPDATE facts SET value = json_build_object(
        'booted', split_part(value, ' ', 1), 'first_id', COALESCE(NULLIF(split_part(value, ' ', 3), ''), '0')::bigint,
        'silent_s', split_part(value, ' ', 2)::float8
    )::text WHERE name = 'slurm.start'
"""
START_BEFORE = """
    UPDATE facts SET value = concat_ws(' ', value::json ->> 'booted', value::json ->> 'silent_s', value::json ->> 'first_id')
    WHERE name = 'slurm.start'
"""
FLAGS = (
    ("slurm.answered_since_start", "yes", "true"),
    ("slurm.answered_since_start", "no", "false"),
    ("benchmark.old_wanted", "wanted", "true"),
)
RENAME = sa.text("UPDATE facts SET name = :new WHERE name = :old")
REWRITE = sa.text("UPDATE facts SET value = :new WHERE name = :name AND value = :old")


def upgrade() -> None:
    connection = op.get_bind()
    for old, new in NAMES.items():
        connection.execute(RENAME, {"old": old, "new": new})
    for name, old, new in FLAGS:
        connection.execute(REWRITE, {"name": name, "old": old, "new": new})
    op.execute(START)


def downgrade() -> None:
    connection = op.get_bind()
    op.execute(START_BEFORE)
    for name, old, new in FLAGS:
        connection.execute(REWRITE, {"name": name, "old": new, "new": old})
    for old, new in NAMES.items():
        connection.execute(RENAME, {"old": new, "new": old})
