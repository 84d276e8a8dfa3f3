"""How often to sweep, and how soon the next sweep is due."""

from collections.abc import Sequence

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.ledger.facts import SLURM_MIN_JOB_AGE
from supervisor_tasks.reconciliation.doubts import doubts
from supervisor_tasks.reconciliation.rules import Discrepancy
from supervisor_tasks.reconciliation.snapshot import Snapshot
from supervisor_tasks.reconciliation.sweep_report import ReconciliationReport

# sweeps while slurmctld remembers a job that has ended: one of them may see nothing
IN_TIME = 3
CHECKED_EVERY_S = 10.0  # beat asks at least so often whether a sweep is due
SHORTEST_S = 20.0  # however soon slurmctld forgets
RETRY_SOON_S = 60.0  # when a side could not be seen
MORE_S = 10.0  # when older claims are left to read


def interval_s(every_s: float, min_job_age_s: float) -> float:
    """How often to sweep if SLURM remembers a job for `min_job_age_s` after its end; 0
    means that SLURM forgets nothing. After that time nothing shows what SLURM gave the
    job, and without accounting nothing shows its end if the callback was lost.
    """
    if not min_job_age_s:
        return every_s
    in_time_s = min_job_age_s / IN_TIME - CHECKED_EVERY_S
    return min(every_s, max(in_time_s, SHORTEST_S))


def _every_s(context: WorkerContext) -> float:
    min_job_age_s = context.ledger.facts.get_or(SLURM_MIN_JOB_AGE, 0)
    return interval_s(context.sweep.every_s, min_job_age_s)


def next_sweep_s(
    context: WorkerContext,
    report: ReconciliationReport,
    snapshot: Snapshot,
    discrepancies: Sequence[Discrepancy],
) -> float:
    """After how many seconds the next sweep is due. Raises LedgerUnavailableError, when
    the database does not answer; a retry helps.
    """
    again_s = _every_s(context)
    if report.more:
        again_s = min(again_s, MORE_S)
    elif report.unseen or report.left_to_cancel:
        again_s = min(again_s, RETRY_SOON_S)
    if snapshot.persisted_by_slurm:
        again_s = min(again_s, RETRY_SOON_S)  # submissions may be paused until then
    if doubts(snapshot, discrepancies):
        again_s = min(again_s, context.sweep.grace_s)
    return again_s
