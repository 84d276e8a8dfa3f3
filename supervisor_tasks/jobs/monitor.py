"""Monitor: ask SLURM what became of the jobs, and record its answers. A callback is
only a hint to look.
"""

from collections.abc import Mapping, Sequence

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.backoff import retry_delay_s
from supervisor_tasks.jobs.callback_fallback import ConflictingOutcomes
from supervisor_tasks.jobs.callback_hints import read_callbacks
from supervisor_tasks.jobs.effect_failures import given_back_on_failure, park
from supervisor_tasks.jobs.events import (
    Event,
    MoreThanPaid,
    SlurmCompleted,
    SlurmPendingObserved,
    SlurmRunningObserved,
    stored_name,
)
from supervisor_tasks.jobs.exclusive_run import side_by_side
from supervisor_tasks.jobs.launch_failures import call_operator_for_nodes
from supervisor_tasks.jobs.model import EffectKind, JobId, Outcome
from supervisor_tasks.jobs.observe import Observed, observe
from supervisor_tasks.jobs.oversize import call_operator, oversized
from supervisor_tasks.jobs.stalled import NOT_LISTED
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.ledger.outbox import OpenEffect
from supervisor_tasks.slurm.job_matching import MatchResult
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import JobRecord

log = structlog.get_logger()

# A look at MANY_JOBS, and a reading of as many callbacks, rests so long: the next one
# costs hardly more for all that came by then.
LOOKS_APART_S = 0.5
MANY_JOBS = 3
BEGUN_AGAIN_S = 1.0  # until the next look at a job that SLURM has just begun


@side_by_side("poll_jobs")
def poll_jobs(context: WorkerContext) -> bool:
    """Read the stored callbacks, then look at all jobs that are due, with one question
    to SLURM. While it waits for the answer, another worker may look at other jobs.
    """
    ledger = context.ledger
    callbacks = read_callbacks(context)
    effects = ledger.effects.lease([EffectKind.POLL_SLURM])
    if max(callbacks, len(effects)) >= MANY_JOBS:
        ledger.local_runs.rest("poll_jobs", LOOKS_APART_S)
    if effects:
        with given_back_on_failure(ledger, effects):
            _look(context, effects)
    elif not callbacks:
        return False
    return ledger.inbox.has_unread() or ledger.effects.any_due([EffectKind.POLL_SLURM])


def _look(context: WorkerContext, effects: Sequence[OpenEffect]) -> None:
    """Ask about the jobs of these effects, and record in one transaction what
    follows.
    """
    observed = observe(context, effects)
    oversizes = oversized(context, observed.jobs.values(), observed.sights)
    changes = list[JobChange]()
    oversizes_after = list[JobChange]()
    for oversize in oversizes:
        if isinstance(oversize.event, MoreThanPaid) and oversize.event.ended:
            changes.append(oversize)  # comes first: the job's end then has the reason
        else:
            oversizes_after.append(oversize)
    for effect in effects:
        changes += _conclude(context, observed, effect)
    changes += oversizes_after
    after = context.ledger.record(*changes)
    call_operator(context, changes, observed.jobs, after)
    call_operator_for_nodes(context, observed.failed)
    for change in changes:
        if isinstance(change.event, SlurmCompleted | SlurmRunningObserved):
            log.info(
                "slurm_state_changed",
                job_id=change.job_id,
                said=stored_name(change.event),
            )
    _postpone_unclear(context, effects, observed.sights)
    just_begun = [effect for effect in effects if effect.job_id in observed.just_begun]
    context.ledger.effects.postpone(just_begun, BEGUN_AGAIN_S)


def _conclude(
    context: WorkerContext, observed: Observed, effect: OpenEffect
) -> list[JobChange]:
    """What to record of the effect's job. If the job needs the operator, its effect is
    parked. If SLURM's answer is not clear, nothing is recorded.
    """
    job = observed.jobs[effect.job_id]
    sight = observed.sights[job.job_id]
    if sight.unclear or job.job_id in observed.just_begun:
        return []
    not_submitted = observed.denied.get(job.job_id) or observed.failed.get(job.job_id)
    if not_submitted is not None:
        return [JobChange(job.job_id, not_submitted, done=effect)]
    runs = list(observed.runs[job.job_id])
    evidence = {"state": job.state, "slurm_id": job.slurm_id}
    if job.job_id in observed.stalled:
        park(
            context.ledger,
            effect,
            observed.stalled[job.job_id],
            **evidence,
            slurm_says=str(sight.record),
        )
        return runs
    reported = observed.reported.get(job.job_id)
    if isinstance(reported, ConflictingOutcomes):
        park(context.ledger, effect, reported.why, **evidence, ends=str(reported))
        return runs
    event = _event_of(sight.record, reported, observed.now_s)
    return [*runs, JobChange(job.job_id, event, done=effect)]


def _event_of(seen: JobRecord | None, reported: Outcome | None, now_s: int) -> Event:
    """What SLURM's record of a job means. Of a job that SLURM has forgotten, the end
    that callbacks report counts.
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
            seen.outcome(), earlier_s, seen.earlier_runs, may_requeue=seen.may_requeue
        )
    run = seen.sighting(now_s)
    if seen.phase is Phase.RUNNING:
        return SlurmRunningObserved(seen.state, run)
    return SlurmPendingObserved(seen.shown, run)


def _postpone_unclear(
    context: WorkerContext,
    effects: Sequence[OpenEffect],
    sights: Mapping[JobId, MatchResult],
) -> None:
    by_reason = dict[str, list[OpenEffect]]()
    for effect in effects:
        reason = sights[effect.job_id].unclear
        if reason:
            by_reason.setdefault(reason, []).append(effect)
    for reason, unclear in by_reason.items():
        log.warning("slurm_poll_postponed", jobs=len(unclear), error=reason)
        delay_s = retry_delay_s(max(effect.attempts for effect in unclear))
        context.ledger.effects.postpone(unclear, delay_s, reason)
