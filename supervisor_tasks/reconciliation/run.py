"""Sweep: compare ledger, contract and SLURM with a handful of questions. Their number
does not grow with the number of jobs.

The sweep reads the ledger first. So all that the ledger stores about SLURM and the
contract had happened before the sweep asks them. A side that does not answer is not
compared. All decisions go through the ledger's `record`, where `advance` makes the
final decision: a job that has moved meanwhile stays as it is.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from typing import Any

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import SupervisorError, TransientError
from supervisor_tasks.execution.exclusive_run import run_exclusive
from supervisor_tasks.jobs.events import stored_name
from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.ledger.advisory_locks import advisory_lock
from supervisor_tasks.ledger.alarms import (
    MAX_JOBS_IN_ALARM,
    STATE_LOST,
    AlarmName,
    Switch,
    is_pause_of_sweep,
)
from supervisor_tasks.ledger.block_reads import CONTRACT_STREAM
from supervisor_tasks.ledger.facts import SLURM_MIN_JOB_AGE
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.lock_names import cluster_lock
from supervisor_tasks.ledger.periodic_run_names import finished_key
from supervisor_tasks.reconciliation import backfill
from supervisor_tasks.reconciliation.collect import (
    MAX_TEXT_CHARS,
    MAX_UNANSWERED_QUESTIONS,
    ReconciliationReport,
    collect_snapshot,
)
from supervisor_tasks.reconciliation.doubts import doubts, needs_operator
from supervisor_tasks.reconciliation.foreign_jobs import (
    update_foreign_job_alarm,
    update_unchecked_token_alarm,
)
from supervisor_tasks.reconciliation.rules import (
    Discrepancy,
    find_discrepancies,
    of_kind,
)
from supervisor_tasks.reconciliation.snapshot import DiscrepancyKind, Snapshot, foreign
from supervisor_tasks.reconciliation.source_outages import (
    unreachable_since,
    update_unreachable_alarm,
)

log = structlog.get_logger()

# sweeps while slurmctld remembers a job that has ended: one of them may see nothing
IN_TIME = 3
CHECKED_EVERY_S = 10.0  # beat asks at least so often whether a sweep is due
SHORTEST_S = 20.0  # however soon slurmctld forgets
RETRY_SOON_S = 60.0  # when a side could not be seen
MORE_S = 10.0  # when older claims are left to read
RECORDED_AT_ONCE = 500
JOBS_CANCELLED_AT_ONCE = 50  # jobs of one user
SHOWN_REJECTED_JOBS = 5  # in a line of the log
MAX_DISCREPANCIES = 200  # discrepancies in a report
RUN_AGAIN = "jobs were requeued after the end that was billed, and are cancelled; plugins/job_submit.lua prevents that"
IN_THE_LOG = ("why", "jobs", "slurm_jobs", "found", "unseen", "seconds")


def sweep(context: WorkerContext, why: str = "") -> None:
    """Compare and mend, unless another worker is doing so. Without a reason the sweep
    runs only when it is due; otherwise the worker reads older claims.
    """
    if why or context.ledger.reconciliations.due():
        run_exclusive(
            context.ledger, "sweep", lambda: _sweep(context, why), takes_long=True
        )
    elif backfill.has_pending_blocks(context):
        run_exclusive(
            context.ledger,
            "sweep",
            lambda: backfill.read_next_range(context),
            takes_long=True,
        )
    else:
        context.ledger.periodic_runs.record(finished_key("sweep"))


def _sweep(context: WorkerContext, why: str) -> bool:
    begun = context.ledger.reconciliations.begin(why)
    report = ReconciliationReport(begun.why)
    snapshot, read_since = collect_snapshot(context, begun, report)
    with report.timed("comparing"):
        discrepancies = find_discrepancies(snapshot)
    with report.timed("recording"):
        _record(context.ledger, discrepancies)
        _read_again(context.ledger, snapshot, discrepancies)
        slurm_answered = snapshot.slurm is not None
        all_matched = slurm_answered and snapshot.historical_matches is not None
        if read_since is not None and all_matched:
            backfill.save_progress(context.ledger, read_since)
    with report.asking("cancelling"):
        _cancel(context, snapshot, discrepancies, report)
    undecided_before = context.ledger.reconciliations.last_entry("needs_operator")
    undecided = needs_operator(snapshot, discrepancies, undecided_before)
    _alarm(context.ledger, snapshot, discrepancies, undecided)
    if snapshot.slurm is not None:
        to_cancel = {discrepancy.cancel for discrepancy in discrepancies}
        unpaid = [job for job in foreign(snapshot) if job.slurm_id not in to_cancel]
        update_foreign_job_alarm(context, unpaid)
        update_unchecked_token_alarm(context, snapshot.slurm.values())
    _pause_submissions(context.ledger, snapshot)
    _dispatch(context, report)
    now_s = begun.at.timestamp()
    since_before_s = context.ledger.reconciliations.last_entry("unreachable_since_s")
    since_s = unreachable_since(report.unseen, since_before_s, now_s)
    update_unreachable_alarm(context.ledger, report.unseen, since_s, now_s)
    document = _document(context, report, snapshot, discrepancies) | {
        "needs_operator": undecided,
        "unreachable_since_s": since_s,
    }
    context.ledger.reconciliations.store(
        begun, document, doubts(snapshot, discrepancies)
    )
    log.info("reconciliation_finished", **{name: document[name] for name in IN_THE_LOG})
    return False


def _record(ledger: Ledger, discrepancies: Sequence[Discrepancy]) -> None:
    changes = list[JobChange]()
    for discrepancy in discrepancies:
        for event in discrepancy.events:
            changes.append(JobChange(discrepancy.job_id, event))
    for start in range(0, len(changes), RECORDED_AT_ONCE):
        ledger.record(*changes[start : start + RECORDED_AT_ONCE])


def _read_again(
    ledger: Ledger, snapshot: Snapshot, discrepancies: Sequence[Discrepancy]
) -> None:
    """Set the scan back to the claims of the jobs that were taken in, so that it reads
    their cancellations and top-ups. Reading other jobs' events a second time changes
    nothing.
    """
    taken_in = of_kind(discrepancies, DiscrepancyKind.NEVER_SEEN)
    if not taken_in:
        return
    first = min(snapshot.claims[discrepancy.job_id].at[0] for discrepancy in taken_in)
    with advisory_lock(ledger.engine, cluster_lock(ledger.cluster, "scan")):
        scanned = ledger.cursors.of(CONTRACT_STREAM)
        if scanned is None or scanned[0] < first:
            return
        with ledger.engine.begin() as connection:
            ledger.cursors.set(connection, CONTRACT_STREAM, first - 1, "")


def _cancel(
    context: WorkerContext,
    snapshot: Snapshot,
    discrepancies: Sequence[Discrepancy],
    report: ReconciliationReport,
) -> None:
    """Cancel each user's jobs with one command. A failure for one user does not stop
    the others. If SLURM repeatedly does not answer, the sweep stops asking.
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


def _alarm(
    ledger: Ledger,
    snapshot: Snapshot,
    discrepancies: Sequence[Discrepancy],
    undecided: Mapping[JobId, SlurmId | None],
) -> None:
    if undecided:
        first = "look at slurmctld's state"
        if snapshot.continuous_uptime_s is None:
            first = "their ends may wait in the hooks' spool: see callback_heartbeat_missing"
        ledger.alarms.on(
            AlarmName.SWEEP_CONTRADICTION,
            jobs=len(undecided),
            some=list(undecided)[:20],
            advice=f"SLURM does not know jobs that it should have: {first}, then confirm that they are lost",
        )
    elif not any(
        doubt.startswith(DiscrepancyKind.MISSING)
        for doubt in doubts(snapshot, discrepancies)
    ):
        ledger.alarms.off(AlarmName.SWEEP_CONTRADICTION)
    _alarm_of_requeued(ledger, discrepancies)
    _alarm_of_foreign_claims(ledger, snapshot, discrepancies)


def _alarm_of_requeued(ledger: Ledger, discrepancies: Sequence[Discrepancy]) -> None:
    requeued = of_kind(discrepancies, DiscrepancyKind.RUNS_AFTER_END)
    again = {discrepancy.job_id: discrepancy.slurm_id for discrepancy in requeued}
    if again:
        some = dict(list(again.items())[:MAX_JOBS_IN_ALARM])
        ledger.alarms.on(
            AlarmName.RUNS_AFTER_END, jobs=len(again), some=some, advice=RUN_AGAIN
        )


def _alarm_of_foreign_claims(
    ledger: Ledger, snapshot: Snapshot, discrepancies: Sequence[Discrepancy]
) -> None:
    claimed = of_kind(discrepancies, DiscrepancyKind.FOREIGN_CLAIM)
    others = [discrepancy.job_id for discrepancy in claimed]
    if others:
        tags = Counter(snapshot.foreign_claim_tags[job_id] for job_id in others)
        ledger.alarms.on(
            AlarmName.FOREIGN_CLAIMS,
            tags=dict(tags),
            some=others[:20],
            advice="another ledger claimed these jobs with this wallet: if it is lost, and its fleet stopped for good,"
            " `supervisor job adopt TAG`",
        )
    elif snapshot.chain is not None:
        ledger.alarms.off(AlarmName.FOREIGN_CLAIMS)


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
            some=snapshot.forgotten[:20],
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
        context.sweep.dispatch("poll_jobs")
    if report.stale["transactions"]:
        context.sweep.dispatch("collect_receipts")


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


def _again_s(
    context: WorkerContext,
    report: ReconciliationReport,
    snapshot: Snapshot,
    discrepancies: Sequence[Discrepancy],
) -> float:
    """How soon the next sweep is due."""
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


def _number(seen: Sized | None) -> int | None:
    """How much a side has; None if the sweep has not seen it."""
    if seen is None:
        return None
    return len(seen)


def _document(
    context: WorkerContext,
    report: ReconciliationReport,
    snapshot: Snapshot,
    discrepancies: Sequence[Discrepancy],
) -> dict[str, Any]:
    return {
        "why": report.why,
        "jobs": len(snapshot.jobs),
        "slurm_jobs": _number(snapshot.slurm),
        "on_chain": _number(snapshot.chain),
        "block": snapshot.block,
        "found": dict(Counter(discrepancy.kind for discrepancy in discrepancies)),
        "discrepancies": [
            _shown(discrepancy) for discrepancy in discrepancies[:MAX_DISCREPANCIES]
        ],
        "cancelled": report.cancelled,
        "not_cancelled": report.not_cancelled,
        "stale": report.stale,
        "unseen": report.unseen,
        "seconds": report.seconds,
        "again_s": _again_s(context, report, snapshot, discrepancies),
    }


def _shown(discrepancy: Discrepancy) -> dict[str, Any]:
    return {
        "found": discrepancy.kind,
        "job_id": discrepancy.job_id,
        "slurm_id": discrepancy.slurm_id,
        "done": [stored_name(event) for event in discrepancy.events],
        "cancelled": discrepancy.cancel,
    }
