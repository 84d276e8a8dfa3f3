"""The alarms about discrepancies that the operator must know of."""

from collections import Counter
from collections.abc import Mapping, Sequence

from supervisor_tasks.alarms.alarm_names import (
    MAX_JOBS_IN_ALARM,
    RUNS_AFTER_END_ADVICE,
    AlarmName,
)
from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.reconciliation.doubts import doubts
from supervisor_tasks.reconciliation.rules import Discrepancy, of_kind
from supervisor_tasks.reconciliation.snapshot import DiscrepancyKind, Snapshot


def update_alarms(
    ledger: Ledger,
    snapshot: Snapshot,
    discrepancies: Sequence[Discrepancy],
    undecided: Mapping[JobId, SlurmId | None],
) -> None:
    """Raise and end the alarms. `undecided` has the jobs that wait for the operator.
    Raises LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    if undecided:
        first = "look at slurmctld's state"
        if snapshot.continuous_uptime_s is None:
            first = "their ends may wait in the hooks' spool: see callback_heartbeat_missing"
        ledger.alarms.on(
            AlarmName.SWEEP_CONTRADICTION,
            jobs=len(undecided),
            some=list(undecided)[:MAX_JOBS_IN_ALARM],
            advice=f"SLURM does not know jobs that it should have: {first}; settle those that ran (SLURM last showed them as"
            " COMPLETING), and confirm that the others are lost",
        )
    elif not any(
        doubt.startswith(DiscrepancyKind.MISSING)
        for doubt in doubts(snapshot, discrepancies)
    ):
        ledger.alarms.off(AlarmName.SWEEP_CONTRADICTION)
    _raise_requeued_alarm(ledger, discrepancies)
    _update_foreign_claims_alarm(ledger, snapshot, discrepancies)


def _raise_requeued_alarm(ledger: Ledger, discrepancies: Sequence[Discrepancy]) -> None:
    requeued = of_kind(discrepancies, DiscrepancyKind.RUNS_AFTER_END)
    again = {discrepancy.job_id: discrepancy.slurm_id for discrepancy in requeued}
    if again:
        some = dict(list(again.items())[:MAX_JOBS_IN_ALARM])
        ledger.alarms.on(
            AlarmName.RUNS_AFTER_END,
            jobs=len(again),
            some=some,
            advice=RUNS_AFTER_END_ADVICE,
        )


def _update_foreign_claims_alarm(
    ledger: Ledger, snapshot: Snapshot, discrepancies: Sequence[Discrepancy]
) -> None:
    claimed = of_kind(discrepancies, DiscrepancyKind.FOREIGN_CLAIM)
    others = [discrepancy.job_id for discrepancy in claimed]
    if others:
        tags = Counter(snapshot.foreign_claim_tags[job_id] for job_id in others)
        ledger.alarms.on(
            AlarmName.FOREIGN_CLAIMS,
            tags=dict(tags),
            some=others[:MAX_JOBS_IN_ALARM],
            advice="another ledger claimed these jobs with this wallet: if it is lost, and its fleet stopped for good,"
            " `supervisor job adopt TAG`",
        )
    elif snapshot.chain is not None:
        ledger.alarms.off(AlarmName.FOREIGN_CLAIMS)
