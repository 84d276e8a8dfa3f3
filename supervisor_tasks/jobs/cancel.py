"""Cancel: ask SLURM to end the job. The time that it really ran is reported when SLURM
shows its end.

An id alone does not identify the job: after a wrap of the ids, or when slurmctld has
lost its state, another job may have it. The admin could end that job too. So the worker
first checks that SLURM's record is the job's, and scancel gets the user whose job it
may end.
"""

from collections.abc import Sequence

import structlog

from supervisor_tasks.alarms.alarm_names import RUNS_AFTER_END_ADVICE, AlarmName
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import PermanentError, TransientError
from supervisor_tasks.jobs.events import (
    EffectCompleted,
    Event,
    LaterRunEnded,
    RequeueForbidden,
    RequeueNotForbidden,
    SlurmCompleted,
    SubmissionStillPossible,
    SubmitStarted,
)
from supervisor_tasks.jobs.model import EffectKind, Job, SlurmId, obsolete_effects
from supervisor_tasks.jobs.submission_records import listed_records
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.slurm.commands import comment
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import JobRecord, SlurmUnavailableError
from supervisor_tasks.slurm.submit_once import may_arrive
from supervisor_tasks.slurm.submit_token import without_token
from supervisor_tasks.slurm_lookup.cluster_check import require_expected_cluster
from supervisor_tasks.slurm_lookup.lookup import look_at, record_of

log = structlog.get_logger()

# for so long an end waits for its report while SLURM cannot be told to reject a requeue
HELD_BACK_S = 3600.0
LOOK_AGAIN_S = 60.0  # between looks while the customer has a token that counts


def cancel(context: WorkerContext, job: Job) -> Event:
    """Cancel the SLURM job with the job's id, if it is ours. If the ledger has no id,
    cancel all SLURM jobs that are identified as the job.

    SLURM must not requeue the job: as long as SLURM remembers an ended or cancelled
    job, its owner could have it run once more. The report of a job that has ended
    waits for that, and runs after its end are billed. If SLURM rejects the order, or
    for HELD_BACK_S does not answer, the report waits no longer.

    Raises TransientError, when SLURM does not answer, cannot cancel the job yet, or has
    not ended such a run; a retry helps. Raises UndecidedError, when the job may or may
    not be the grid's; a retry does not help: the operator decides.
    """
    if job.slurm_id is None:
        return _cancel_without_id(context, job)
    try:
        return _cancel_by_id(context, job, job.slurm_id)
    except PermanentError:
        _report_all_the_same(context, job)
        raise
    except TransientError:
        if job.may_run_again and _ended_ago_s(context, job) > HELD_BACK_S:
            _report_all_the_same(context, job)
        raise


def _ended_ago_s(context: WorkerContext, job: Job) -> float:
    """How many seconds ago a look saw the job's end; 0 if the journal has none."""
    ages_s = context.ledger.journal.last_ages_s([job.job_id], SlurmCompleted)
    return ages_s.get(job.job_id, 0.0)


def _report_all_the_same(context: WorkerContext, job: Job) -> None:
    if job.may_run_again:
        context.ledger.record(JobChange(job.job_id, RequeueNotForbidden()))


def _cancel_by_id(context: WorkerContext, job: Job, slurm_id: SlurmId) -> Event:
    control = context.slurm.cluster.control
    seen = record_of(context, job)
    if job.may_run_again:
        # before the orders: SLURM then shows the next run
        _bill_later_run(context, job, seen or _accounted(context, job))
    if seen is not None:
        if seen.may_requeue:
            if seen.phase is Phase.ENDED:
                control.hold_again(slurm_id)
            control.forbid_requeue(slurm_id)
        control.cancel(slurm_id, job.customer)
    if not job.may_run_again:
        return EffectCompleted(EffectKind.CANCEL)
    if seen is not None and _runs_now(job, seen):
        raise SlurmUnavailableError(
            f"SLURM has not ended the run of {slurm_id} that its owner began after the job's end"
        )
    return RequeueForbidden()


def _accounted(context: WorkerContext, job: Job) -> JobRecord | None:
    """Accounting's record of a job that slurmctld does not know."""
    match = look_at(context, [job], {})[job.job_id]
    if match.unclear:
        raise SlurmUnavailableError(match.unclear)
    return match.record


def _is_later_run(job: Job, seen: JobRecord) -> bool:
    """Whether SLURM shows another run than the last one that the ledger knows."""
    return job.slurm_submit_s is not None and seen.submit_s > job.slurm_submit_s


def _runs_now(job: Job, seen: JobRecord) -> bool:
    """Whether SLURM shows a run after the job's end that has begun, and not ended."""
    has_ended = seen.phase is Phase.ENDED
    return _is_later_run(job, seen) and not (seen.is_pending or has_ended)


def _bill_later_run(context: WorkerContext, job: Job, seen: JobRecord | None) -> None:
    """Record the seconds of a run after the job's end, and tell the operator."""
    if seen is None or seen.phase is not Phase.ENDED:
        return
    if seen.elapsed_s == 0 or not _is_later_run(job, seen):
        return
    event = LaterRunEnded(seen.slurm_id, seen.submit_s, seen.elapsed_s)
    context.ledger.record(JobChange(job.job_id, event))
    log.warning(
        "later_run_billed",
        job_id=job.job_id,
        slurm_id=seen.slurm_id,
        elapsed_s=seen.elapsed_s,
    )
    context.ledger.alarms.on(
        AlarmName.RUNS_AFTER_END,
        jobs=1,
        some={job.job_id: seen.slurm_id},
        advice=RUNS_AFTER_END_ADVICE,
    )


def _cancel_without_id(context: WorkerContext, job: Job) -> Event:
    """Cancel what SLURM has of the job, once nothing of what was sent to sbatch can
    arrive any more. Do so each minute while the customer can submit it himself: his
    login session got the token, and may have answered what is false.
    """
    ages_s = context.ledger.journal.ages_s([job.job_id], SubmitStarted)
    begun_ago_s = ages_s.get(job.job_id)
    if begun_ago_s is None:
        return EffectCompleted(EffectKind.CANCEL)
    require_expected_cluster(context)
    submissions = context.slurm.cluster.submissions
    last_ago_s, first_ago_s = begun_ago_s[0], begun_ago_s[-1]
    if may_arrive(last_ago_s, submissions.window_s):
        return SubmissionStillPossible(submissions.window_s - last_ago_s)
    _cancel_all(context, job, listed_records(context, job, first_ago_s))
    if may_arrive(last_ago_s, submissions.token_window_s):
        left_s = submissions.token_window_s - last_ago_s
        return SubmissionStillPossible(min(left_s, LOOK_AGAIN_S))
    return EffectCompleted(EffectKind.CANCEL)


def _cancel_all(context: WorkerContext, job: Job, records: Sequence[JobRecord]) -> None:
    """Cancel these SLURM jobs, unless the job was claimed again meanwhile, and its new
    submission is among them. Where no owner can change a comment, SLURM jobs of another
    supervisor are left alone: it may have claimed the job.
    """
    if not records:
        return
    now = context.ledger.jobs([job.job_id])[job.job_id]
    if now.slurm_id is not None or EffectKind.CANCEL in obsolete_effects(now):
        return
    cluster = context.slurm.cluster
    listed = cluster.queries.list_all(job.customer)
    for record in records:
        row = listed.get(record.slurm_id)
        if row is None:
            continue
        is_ours = without_token(row.comment) == comment(cluster.settings.public_address)
        if is_ours or not cluster.settings.submit_key:
            cluster.control.cancel(record.slurm_id, job.customer)
