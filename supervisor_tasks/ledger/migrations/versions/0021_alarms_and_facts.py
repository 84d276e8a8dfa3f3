"""Alarms, switches, facts and ticks are stored under the names that operators and
engineers use for them.

The whole fleet must be stopped, but for the reporter: its processes of the version
before would write rows under the old names after this migration.
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None
old_processes_work = False  # they write and read the old names

ALARMS = {
    "slurm_is_another": "slurm_cluster_mismatch",
    "slurm_forgot": "slurm_state_lost",
    "nodes_not_seen": "no_usable_nodes",
    "callbacks_away": "callback_heartbeat_missing",
    "endpoint_away": "rpc_endpoint_unavailable",
    "foreign_writer": "unknown_transaction_on_account",
    "another_ledgers_jobs": "foreign_claims",
    "claims_revert": "claims_reverting",
    "scan_stands_still": "chain_scan_stalled",
    "effect_late": "effect_overdue",
    "directory_refuses": "ldap_request_rejected",
    "directory_away": "ldap_unavailable",
    "sweep_blind": "reconciliation_source_unreachable",
    "benchmark_stands_still": "benchmark_stalled",
}
SWITCHES = {"drained": "claiming_paused", "submissions_held": "submissions_paused"}
# A fact of a condition has the name of its alarm.
FACTS = {f"condition.{old}": f"condition.{new}" for old, new in ALARMS.items()} | {
    "benchmark.old_wanted": "benchmark.cleanup_requested",
    "callbacks.strange_looked_at": "callbacks.unknown_checked_to",
    "chain.rewind_wanted": "chain.rewind_requested",
    "claims.reverted.claim": "claims.revert_streak.claim",
    "claims.reverted.claim_cancelling": "claims.revert_streak.claim_cancelling",
    "claims.reverted.claim_top_up": "claims.revert_streak.claim_top_up",
    "condition.first_transaction_oddly_refused": "condition.first_transaction_unclassified_error",
    "condition.refused.claim": "condition.estimate_rejected.claim",
    "condition.refused.claim_cancelling": "condition.estimate_rejected.claim_cancelling",
    "condition.refused.claim_top_up": "condition.estimate_rejected.claim_top_up",
    "provider.measurement_wanted": "provider.measurement_requested",
    "provider.registration_memory": "provider.registration_record",
    "provider.registration_wanted": "provider.registration_requested",
    "provider.standing": "provider.registration_status",
    "provider.why_nodes_not_seen": "provider.no_usable_nodes_reason",
    "slurm.booted": "slurm.boot_time",
    "slurm.cluster": "slurm.cluster_identity",
    "slurm.other_cluster": "slurm.unexpected_cluster",
    "sweep.wanted": "sweep.requested",
}
TICKS = {"strange callbacks forgotten": "unknown callbacks purged"}
NAMES = {"alarms": ALARMS, "switches": SWITCHES, "facts": FACTS, "ticks": TICKS}


def _rename(table: str, old: list[str], new: list[str]) -> None:
    statement = sa.text(
        f"UPDATE {table} SET name = names.new"  # noqa: S608  our own tables
        " FROM (SELECT unnest(CAST(:old AS text[])) AS old, unnest(CAST(:new AS text[])) AS new) AS names"
        " WHERE name = names.old"
    )
    op.get_bind().execute(statement, {"old": old, "new": new})


def upgrade() -> None:
    for table, names in NAMES.items():
        _rename(table, list(names), list(names.values()))


def downgrade() -> None:
    for table, names in NAMES.items():
        _rename(table, list(names.values()), list(names))
