"""Monitor: ask SLURM what became of the jobs, and record its answers. A callback is
only a hint to look.
"""

from collections.abc import Sequence

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.execution.backoff import retry_delay_s
from supervisor_tasks.execution.effect_failures import given_back_on_failure, park_all
from supervisor_tasks.execution.exclusive_run import side_by_side
from supervisor_tasks.jobs.callback_fallback import ConflictingOutcomes
from supervisor_tasks.jobs.callback_hints import read_callbacks
from supervisor_tasks.jobs.events import (
    Event,
    MoreThanPaid,
    SlurmCompleted,
    SlurmPendingObserved,
    SlurmRunningObserved,
    stored_name,
)
from supervisor_tasks.jobs.launch_failures import raise_jobs_not_started_alarm
from supervisor_tasks.jobs.model import EffectKind, JobId, Outcome
from supervisor_tasks.jobs.observe import Observed, observe
from supervisor_tasks.jobs.size_check import oversized, raise_more_than_paid_alarm
from supervisor_tasks.jobs.stalled import NOT_LISTED
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.ledger.outbox import Failure, OpenEffect
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import JobRecord

log = structlog.get_logger()

# After a look at MANY_JOBS, or a reading of as many callbacks, the next one begins so
# long after this one: it costs hardly more for all that came by then.
LOOKS_APART_S = 0.5
MANY_JOBS = 3
BEGUN_AGAIN_S = 1.0  # until the next look at a job that SLURM has just begun


@side_by_side("poll_jobs")
def poll_jobs(context: WorkerContext) -> bool:
    """Read the stored callbacks, then look at all jobs that are due, with one question
    to SLURM, and record in one transaction what follows. While it waits for the answer,
    another worker may look at other jobs. The looks are postponed while SLURM or the
    login node does not answer. Raises LedgerUnavailableError, when the database does
    not answer; a retry helps.
    """
    ledger = context.ledger
    callbacks = read_callbacks(context)
    effects = ledger.effects.lease([EffectKind.POLL_SLURM])
    if max(callbacks, len(effects)) >= MANY_JOBS:
        ledger.local_runs.delay_next_run("poll_jobs", LOOKS_APART_S)
    if effects:
        with given_back_on_failure(ledger, effects):
            observed = observe(context, effects)
            first, last = _oversizes(context, observed)
            changes = [*first, *_conclusions(context, observed, effects), *last]
            changes += observed.awaited
            after = ledger.record(*changes)
            raise_more_than_paid_alarm(context, changes, observed.jobs, after)
            raise_jobs_not_started_alarm(context, observed.failed)
            _log_changes(changes)
            _postpone(context, observed, effects)
    elif not callbacks:
        return False
    return ledger.callbacks.has_unread() or ledger.effects.any_due(
        [EffectKind.POLL_SLURM]
    )


def _oversizes(
    context: WorkerContext, observed: Observed
) -> tuple[list[JobChange], list[JobChange]]:
    """The changes about jobs that SLURM has made bigger than paid for: those to record
    before the jobs' other changes, and those to record after them. A job that has ended
    is in the first list, so that its end has the reason.
    """
    first = list[JobChange]()
    last = list[JobChange]()
    for oversize in oversized(context, observed.jobs, observed.matches):
        if isinstance(oversize.event, MoreThanPaid) and oversize.event.ended:
            first.append(oversize)
        else:
            last.append(oversize)
    return first, last


def _conclusions(
    context: WorkerContext, observed: Observed, effects: Sequence[OpenEffect]
) -> list[JobChange]:
    """What to record of the jobs of these effects. If a job needs the operator, its
    effect is parked. If SLURM's answer about a job is not clear, this records nothing.
    """
    changes = list[JobChange]()
    failures = list[Failure]()
    not_submitted: dict[JobId, Event] = {**observed.false_ids, **observed.failed}
    for effect in effects:
        job = observed.jobs[effect.job_id]
        match = observed.matches[job.job_id]
        if match.unclear or job.job_id in observed.just_begun:
            continue
        if job.job_id in not_submitted:
            event = not_submitted[job.job_id]
            changes.append(JobChange(job.job_id, event, done=effect))
            continue
        changes += observed.runs[job.job_id]
        evidence: dict[str, object] = {"state": job.state, "slurm_id": job.slurm_id}
        reported = observed.reported.get(job.job_id)
        if job.job_id in observed.stalled:
            reason = observed.stalled[job.job_id]
            seen = evidence | {"slurm_says": str(match.record)}
            failures.append(Failure(effect, reason, seen))
        elif isinstance(reported, ConflictingOutcomes):
            seen = evidence | {"ends": str(reported)}
            failures.append(Failure(effect, reported.why, seen))
        else:
            event = _event_of(match.record, reported, observed.now_s)
            changes.append(JobChange(job.job_id, event, done=effect))
    park_all(context.ledger, failures)
    return changes


def _event_of(seen: JobRecord | None, reported: Outcome | None, now_s: int) -> Event:
    """What SLURM's record of a job means. Where SLURM has forgotten the job or its
    first end, the end that callbacks report counts.
    """
    if seen is None:
        if reported is None:
            return SlurmPendingObserved(NOT_LISTED)
        return SlurmCompleted(reported)
    if seen.phase is Phase.ENDED:
        earlier_s = None
        if seen.earlier_runs:
            earlier_s = seen.earlier_s
        return SlurmCompleted(
            reported or seen.outcome(),
            earlier_s,
            seen.earlier_runs,
            may_requeue=seen.may_requeue,
        )
    run = seen.sighting(now_s)
    if seen.phase is Phase.RUNNING:
        return SlurmRunningObserved(seen.state, run)
    return SlurmPendingObserved(seen.shown, run)


def _log_changes(changes: Sequence[JobChange]) -> None:
    for change in changes:
        if isinstance(change.event, SlurmCompleted | SlurmRunningObserved):
            log.info(
                "slurm_state_changed",
                job_id=change.job_id,
                job_event=stored_name(change.event),
            )


def _postpone(
    context: WorkerContext, observed: Observed, effects: Sequence[OpenEffect]
) -> None:
    """Look again later at jobs whose state is not clear, and at those that have just
    begun.
    """
    just_begun = list[OpenEffect]()
    by_reason = dict[str, list[OpenEffect]]()
    for effect in effects:
        reason = observed.matches[effect.job_id].unclear
        if reason:
            by_reason.setdefault(reason, []).append(effect)
        if effect.job_id in observed.just_begun:
            just_begun.append(effect)
    for reason, unclear in by_reason.items():
        log.warning("slurm_poll_postponed", jobs=len(unclear), error=reason)
        delay_s = retry_delay_s(max(effect.attempts for effect in unclear))
        context.ledger.effects.postpone(unclear, delay_s, reason)
    context.ledger.effects.postpone(just_begun, BEGUN_AGAIN_S)
