"""Sweep: compare ledger, contract and SLURM with a handful of questions. Their number
does not grow with the number of jobs.

The sweep reads the ledger first. So all that the ledger stores about SLURM and the
contract had happened before the sweep asks them. A side that does not answer is not
compared. All decisions go through the ledger's `record`, where `advance` makes the
final decision: a job that has moved meanwhile stays as it is.
"""

import structlog

from supervisor_tasks.alarms.alarm_names import MAX_JOBS_IN_ALARM, AlarmName
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.execution.exclusive_run import run_exclusive
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.periodic_run_names import finished_key
from supervisor_tasks.ledger.switch_names import STATE_LOST, Switch, is_pause_of_sweep
from supervisor_tasks.reconciliation import backfill
from supervisor_tasks.reconciliation.collect import collect_snapshot
from supervisor_tasks.reconciliation.doubts import doubts, needs_operator
from supervisor_tasks.reconciliation.foreign_jobs import (
    update_foreign_job_alarm,
    update_unchecked_token_alarm,
    without_settled,
)
from supervisor_tasks.reconciliation.recording import record_discrepancies
from supervisor_tasks.reconciliation.rules import find_discrepancies, unpaid
from supervisor_tasks.reconciliation.snapshot import Snapshot
from supervisor_tasks.reconciliation.source_outages import (
    unreachable_since,
    update_unreachable_alarm,
)
from supervisor_tasks.reconciliation.sweep_alarms import update_alarms
from supervisor_tasks.reconciliation.sweep_cancellations import cancel_jobs
from supervisor_tasks.reconciliation.sweep_document import document_of
from supervisor_tasks.reconciliation.sweep_report import (
    HISTORY_SIDE,
    ReconciliationReport,
)

log = structlog.get_logger()

IN_THE_LOG = ("why", "jobs", "slurm_jobs", "found", "unseen", "seconds")


def sweep(context: WorkerContext, why: str = "") -> None:
    """Compare the ledger, the contract and SLURM, and record what follows. Does nothing
    while another worker sweeps. Without a reason the sweep runs only when it is due;
    otherwise the worker reads older claims, unless the last sweep could not read them.

    A sweep goes on without a side that does not answer, and its report names that side.
    Raises LedgerUnavailableError, when the database does not answer, and
    RpcUnavailableError, when no endpoint answers while older claims are read; a retry
    helps.
    """
    if why or context.ledger.reconciliations.due():
        run_exclusive(
            context.ledger, "sweep", lambda: _sweep(context, why), takes_long=True
        )
    elif backfill.has_pending_blocks(context) and _saw_history(context.ledger):
        run_exclusive(
            context.ledger,
            "sweep",
            lambda: backfill.read_next_range(context),
            takes_long=True,
        )
    else:
        context.ledger.periodic_runs.record(finished_key("sweep"))


def _saw_history(ledger: Ledger) -> bool:
    """Whether the last sweep could read older claims: a node without old logs is asked
    for them once a sweep.
    """
    return HISTORY_SIDE not in ledger.reconciliations.last_entry("unseen")


def _sweep(context: WorkerContext, why: str) -> bool:
    begun = context.ledger.reconciliations.begin(why)
    report = ReconciliationReport(begun.why)
    snapshot, read_since = collect_snapshot(context, begun, report)
    with report.timed("comparing"):
        discrepancies = find_discrepancies(snapshot)
    with report.timed("recording"):
        record_discrepancies(context.ledger, snapshot, discrepancies)
        slurm_answered = snapshot.slurm is not None
        all_matched = slurm_answered and snapshot.historical_matches is not None
        if read_since is not None and all_matched:
            backfill.save_progress(context.ledger, read_since)
    with report.asking("cancelling"):
        cancel_jobs(context, snapshot, discrepancies, report)
    undecided_before = context.ledger.reconciliations.last_entry("needs_operator")
    undecided = needs_operator(snapshot, discrepancies, undecided_before)
    update_alarms(context.ledger, snapshot, discrepancies, undecided)
    if snapshot.slurm is not None:
        foreign_jobs = without_settled(context.ledger, unpaid(snapshot, discrepancies))
        update_foreign_job_alarm(context, foreign_jobs)
        update_unchecked_token_alarm(context, snapshot.slurm.values())
    _pause_submissions(context.ledger, snapshot)
    _dispatch(context, report)
    now_s = begun.at.timestamp()
    since_before_s = context.ledger.reconciliations.last_entry("unreachable_since_s")
    since_s = unreachable_since(report.unseen, since_before_s, now_s)
    update_unreachable_alarm(context.ledger, report.unseen, since_s, now_s)
    document = document_of(context, report, snapshot, discrepancies) | {
        "needs_operator": undecided,
        "unreachable_since_s": since_s,
    }
    context.ledger.reconciliations.store(
        begun, document, doubts(snapshot, discrepancies)
    )
    log.info("reconciliation_finished", **{name: document[name] for name in IN_THE_LOG})
    return False


def _pause_submissions(ledger: Ledger, snapshot: Snapshot) -> None:
    """Pause submissions to a SLURM that has lost its state, until the state is back or
    the operator accepts the loss.
    """
    paused_for = ledger.switches.reason(Switch.SUBMISSIONS_PAUSED)
    if snapshot.slurm_lost_state:
        reason = f"{STATE_LOST} {len(snapshot.forgotten)} jobs that it had saved"
        if paused_for is None:
            ledger.switches.set(Switch.SUBMISSIONS_PAUSED, reason)
        advice = "look at slurmctld's StateSaveLocation; if what it has forgotten is lost, `supervisor cluster accept`"
        ledger.alarms.on(
            AlarmName.SLURM_STATE_LOST,
            jobs=len(snapshot.forgotten),
            some=snapshot.forgotten[:MAX_JOBS_IN_ALARM],
            reason=reason,
            advice=advice,
        )
    elif snapshot.knows_all_it_had_saved:
        if is_pause_of_sweep(paused_for):
            # a pause that the operator sets meanwhile stays
            ledger.switches.unset(Switch.SUBMISSIONS_PAUSED, paused_for)
        ledger.alarms.off(AlarmName.SLURM_STATE_LOST)


def _dispatch(context: WorkerContext, report: ReconciliationReport) -> None:
    """Dispatch the tasks for effects and transactions that no worker works on, and for
    unread callbacks.
    """
    report.stale = context.ledger.reconciliations.stale()
    if report.stale["effects"]:
        context.ledger.effects.dispatch_effects(
            context.ledger.effects.due_without_message()
        )
    if report.stale["callbacks"]:
        context.dispatch("poll_jobs")
    if report.stale["transactions"]:
        context.dispatch("collect_receipts")
