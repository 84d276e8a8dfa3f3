"""Cancel the SLURM jobs that a sweep decided on."""

from collections.abc import Mapping, Sequence

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import SupervisorError, TransientError
from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.reconciliation.rules import Discrepancy
from supervisor_tasks.reconciliation.snapshot import Snapshot
from supervisor_tasks.reconciliation.sweep_report import (
    MAX_TEXT_CHARS,
    MAX_UNANSWERED_QUESTIONS,
    ReconciliationReport,
)

log = structlog.get_logger()

JOBS_CANCELLED_AT_ONCE = 50  # jobs of one user
SHOWN_REJECTED_JOBS = 5  # in a line of the log


def cancel_jobs(
    context: WorkerContext,
    snapshot: Snapshot,
    discrepancies: Sequence[Discrepancy],
    report: ReconciliationReport,
) -> None:
    """Cancel each user's jobs with one command. A failure for one user does not stop
    the others. If SLURM repeatedly does not answer, the sweep stops asking. The report
    names the jobs that were not cancelled; the next sweep tries them again. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    to_cancel = _to_cancel(context.ledger, snapshot, discrepancies)
    unanswered = 0
    for user, all_of_user in to_cancel.items():
        of_user = dict(all_of_user[:JOBS_CANCELLED_AT_ONCE])
        report.left_to_cancel += len(all_of_user) - len(of_user)
        try:
            rejected = context.slurm.cluster.control.cancel_all(list(of_user), user)
        except SupervisorError as error:
            rejected = dict.fromkeys(of_user, str(error))
            unanswered += isinstance(error, TransientError)
        _log_cancelled(of_user, rejected, report)
        if unanswered >= MAX_UNANSWERED_QUESTIONS:
            break
    if report.not_cancelled:
        some = dict(list(report.not_cancelled.items())[:SHOWN_REJECTED_JOBS])
        log.error("slurm_jobs_not_cancelled", jobs=len(report.not_cancelled), some=some)


def _to_cancel(
    ledger: Ledger, snapshot: Snapshot, discrepancies: Sequence[Discrepancy]
) -> dict[str, list[tuple[SlurmId, Discrepancy]]]:
    """The SLURM jobs to cancel of each user, with their discrepancies. Jobs whose
    cancellation failed in the last sweep come last.
    """
    failed_before = ledger.reconciliations.last_entry("not_cancelled")
    of_users = dict[str, list[tuple[SlurmId, Discrepancy]]]()
    for discrepancy in discrepancies:
        if discrepancy.cancel is not None:
            user = snapshot.rows[discrepancy.cancel].user
            of_users.setdefault(user, []).append((discrepancy.cancel, discrepancy))
    for of_user in of_users.values():
        of_user.sort(key=lambda entry: str(entry[0]) in failed_before)
    return of_users


def _log_cancelled(
    discrepancies: Mapping[SlurmId, Discrepancy],
    rejected: Mapping[SlurmId, str],
    report: ReconciliationReport,
) -> None:
    for slurm_id, discrepancy in discrepancies.items():
        if slurm_id in rejected:
            why = rejected[slurm_id][:MAX_TEXT_CHARS]
            report.not_cancelled[str(slurm_id)] = report.unseen["cancelling"] = why
            continue
        log.error(
            "slurm_job_cancelled",
            job_id=discrepancy.job_id,
            slurm_id=slurm_id,
            found=discrepancy.kind,
        )
        report.cancelled += 1
