"""Monitor: ask SLURM what became of the jobs, and record its answers. A callback is only a hint to look."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import structlog
from sqlalchemy import Connection

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.backoff import retry_delay_s
from supervisor_tasks.jobs.callback_fallback import (
    RUNNING,
    CallbackRecord,
    ConflictingOutcomes,
    outcome_from_callbacks,
    poll_delay_s,
)
from supervisor_tasks.jobs.denied_ids import deny
from supervisor_tasks.jobs.events import (
    CallbackReceived,
    Event,
    LaunchFailed,
    MoreThanPaid,
    SlurmCompleted,
    SlurmJobIdentified,
    SlurmPendingObserved,
    SlurmRunningObserved,
    SubmissionDenied,
    stored_name,
)
from supervisor_tasks.jobs.exclusive_run import given_back_on_failure, park, run_side_by_side
from supervisor_tasks.jobs.launch_failures import call_operator_for_nodes, launch_failures
from supervisor_tasks.jobs.lookup import look_at
from supervisor_tasks.jobs.model import EffectKind, Job, JobId, Outcome, State
from supervisor_tasks.jobs.oversize import call_operator, oversized
from supervisor_tasks.jobs.run_callbacks import runs_from_callbacks
from supervisor_tasks.jobs.runs import is_exact
from supervisor_tasks.jobs.runs import seen as runs_after
from supervisor_tasks.jobs.site_choices import with_site_choices
from supervisor_tasks.jobs.stalled import NOT_LISTED, PATIENCE_S, is_unexpected_state, stall_reason
from supervisor_tasks.ledger.callbacks import CallbackSeen
from supervisor_tasks.ledger.counters import Total
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.ledger.outbox import OpenEffect
from supervisor_tasks.slurm.job_matching import MatchResult
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import JobRecord

log = structlog.get_logger()

# A look at MANY_JOBS, and a reading of as many callbacks, rests so long: the next one costs hardly more for all that
# came by then.
LOOKS_APART_S = 0.5
MANY_JOBS = 3
BEGUN_AGAIN_S = 1.0  # until the next look at a job that SLURM has just begun
ASKED_FOR_RUNS = 5  # looks at which accounting is asked for a job's runs; after these, what the looks saw counts
LOOKED_BACK_S = 2 * PATIENCE_S
LOG_SAMPLE_SIZE = 3  # callbacks about other jobs than ours in one log line


def poll_jobs(context: WorkerContext) -> None:
    """Read the inbox, then look at all jobs that are due, with one question to SLURM. While it waits for the answer,
    another worker may look at other jobs.
    """
    run_side_by_side(context.ledger, "poll_jobs", lambda: _poll(context))


def _poll(context: WorkerContext) -> bool:
    read = _read_inbox(context)
    looked = _look(context)
    ledger = context.ledger
    return (read or looked) and (ledger.inbox.has_unread() or ledger.effects.any_due([EffectKind.POLL_SLURM]))


def _read_inbox(context: WorkerContext) -> bool:
    """Read the callbacks. A callback that two workers read at the same time is counted once, and asks for two looks."""
    callbacks = context.ledger.inbox.unread()
    if not callbacks:
        return False
    if len(callbacks) >= MANY_JOBS:
        context.ledger.local_runs.rest("poll_jobs", LOOKS_APART_S)
    jobs = context.ledger.jobs({callback.job_id for callback in callbacks})
    heard = context.ledger.inbox.counts({(callback.job_id, callback.slurm_id) for callback in callbacks})
    hinted, strange, verdicts = dict[JobId, CallbackReceived](), list[CallbackSeen](), dict[int, str]()
    for callback in callbacks:
        job = jobs.get(callback.job_id)
        if job is not None and job.slurm_id == callback.slurm_id:
            verdicts[callback.id] = "matched"
            hinted[job.job_id] = _hint(hinted.get(job.job_id), callback, heard[job.job_id, callback.slurm_id])
        elif job is None or job.slurm_id is not None:
            verdicts[callback.id] = "strange"
            strange.append(callback)
        else:
            # The callback came before sbatch's answer. The first look follows that answer in a moment, and the
            # callback stays in the inbox.
            verdicts[callback.id] = "early"
    if strange:
        _log_strange(strange)

    def read(connection: Connection) -> None:
        marked = context.ledger.inbox.mark_read(connection, callbacks)
        counted = Counter((Total.CALLBACKS, verdicts[number]) for number in marked)
        context.ledger.counters.add(connection, counted)

    context.ledger.record(*(JobChange(job_id, event) for job_id, event in hinted.items()), also=read)
    return True


def _log_strange(strange: Sequence[CallbackSeen]) -> None:
    shown = [f"{callback.job_id} as {callback.slurm_id}" for callback in islice(strange, LOG_SAMPLE_SIZE)]
    log.warning("callbacks_unknown_job", callbacks=len(strange), first=shown)


def _hint(so_far: CallbackReceived | None, callback: CallbackSeen, heard: int) -> CallbackReceived:
    """The event for all unread callbacks of a job. Callbacks that a stranger forges cannot delay the look that a proven
    callback asks for.
    """
    in_s = 0.0 if callback.proven else poll_delay_s(heard)
    if so_far is None:
        return CallbackReceived(in_s, callback.status == RUNNING)
    return CallbackReceived(min(in_s, so_far.poll_delay_s), so_far.running or callback.status == RUNNING)


def _look(context: WorkerContext) -> bool:
    effects = context.ledger.effects.lease([EffectKind.POLL_SLURM])
    if not effects:
        return False
    if len(effects) >= MANY_JOBS:
        context.ledger.local_runs.rest("poll_jobs", LOOKS_APART_S)
    with given_back_on_failure(context.ledger, effects):
        _see(context, effects)
    return True


@dataclass(frozen=True, slots=True)
class _Observed:
    """What one look knows of its jobs, by their ids. `told` are changes to record before the job's state changes."""

    jobs: Mapping[JobId, Job]
    sights: Mapping[JobId, MatchResult]
    denied: Mapping[JobId, SubmissionDenied]
    failed: Mapping[JobId, LaunchFailed]
    stalled: Mapping[JobId, str]
    heard: Mapping[JobId, Outcome | ConflictingOutcomes]
    told: Mapping[JobId, Sequence[JobChange]]
    now_s: int


def _see(context: WorkerContext, effects: Sequence[OpenEffect]) -> None:
    observed = _observe(context, effects)
    oversizes = oversized(context, observed.jobs.values(), observed.sights)
    # Of a job that has ended this comes first: its end then has the reason.
    changes = [change for change in oversizes if _has_ended(change)]
    for effect in effects:
        changes += _conclude(context, observed, effect)
    changes += [change for change in oversizes if not _has_ended(change)]
    call_operator(context, changes, observed.jobs, context.ledger.record(*changes))
    call_operator_for_nodes(context, observed.failed)
    for change in changes:
        if isinstance(change.event, SlurmCompleted | SlurmRunningObserved):
            log.info("slurm_state_changed", job_id=change.job_id, said=stored_name(change.event))
    _postpone_unclear(context, effects, observed.sights)
    just_begun = [
        effect for effect in effects if _has_just_begun(observed.jobs[effect.job_id], observed.sights[effect.job_id])
    ]
    context.ledger.effects.postpone(just_begun, BEGUN_AGAIN_S)


def _observe(context: WorkerContext, effects: Sequence[OpenEffect]) -> _Observed:
    """Ask SLURM, accounting and the stored callbacks about the jobs of these effects."""
    jobs = context.ledger.jobs({effect.job_id for effect in effects})
    attempts = {effect.job_id: effect.attempts for effect in effects}
    sights = look_at(context, jobs.values())
    sights |= with_site_choices(context, jobs, sights)
    denied = deny(context, jobs, sights)
    failed = launch_failures(context, jobs, sights)
    forgotten = [job for job_id, job in jobs.items() if sights[job_id].unknown and job_id not in denied]
    heard = _believed(context, forgotten)
    stalled = _stalled(context, sights)
    now_s = _now_s(context, sights.values())
    identified = _recognised(context, jobs.values(), sights, now_s)
    sights |= _runs_asked(context, jobs, sights, attempts)
    earlier_runs, waiting = runs_from_callbacks(context, jobs, sights, attempts)
    sights |= waiting
    told = {job_id: _present(job_id, identified, earlier_runs) for job_id in jobs}
    return _Observed(jobs, sights, denied, failed, stalled, heard, told, now_s)


def _has_just_begun(job: Job, sight: MatchResult) -> bool:
    """Whether SLURM runs the job since less than a second, and no look has seen it run. Its node may fail to start it;
    the look a second later shows that, and it is then no run.
    """
    begun = sight.seen is not None and sight.seen.state == "RUNNING" and sight.seen.elapsed_s == 0
    return begun and job.state is State.QUEUED


def _present(job_id: JobId, *known: Mapping[JobId, JobChange]) -> list[JobChange]:
    return [changes[job_id] for changes in known if job_id in changes]


def _has_ended(change: JobChange) -> bool:
    return isinstance(change.event, MoreThanPaid) and change.event.ended


def _conclude(context: WorkerContext, observed: _Observed, effect: OpenEffect) -> list[JobChange]:
    """What to record of the effect's job. If the job needs the operator, its effect is parked. If SLURM's answer is not
    clear, nothing is recorded.
    """
    job = observed.jobs[effect.job_id]
    sight, heard = observed.sights[job.job_id], observed.heard.get(job.job_id)
    if sight.unclear or _has_just_begun(job, sight):
        return []
    if job.job_id in observed.denied:
        return [JobChange(job.job_id, observed.denied[job.job_id], done=effect)]
    if job.job_id in observed.failed:
        return [JobChange(job.job_id, observed.failed[job.job_id], done=effect)]
    told = list(observed.told[job.job_id])
    about = {"state": job.state, "slurm_id": job.slurm_id}
    if job.job_id in observed.stalled:
        park(context.ledger, effect, observed.stalled[job.job_id], **about, slurm_says=str(sight.seen))
        return told
    if isinstance(heard, ConflictingOutcomes):
        park(context.ledger, effect, heard.why, **about, ends=str(heard))
        return told
    return [*told, JobChange(job.job_id, _what(sight.seen, heard, observed.now_s), done=effect)]


def _postpone_unclear(
    context: WorkerContext, effects: Sequence[OpenEffect], sights: Mapping[JobId, MatchResult]
) -> None:
    unclear = dict[str, list[OpenEffect]]()
    for effect in effects:
        if why := sights[effect.job_id].unclear:
            unclear.setdefault(why, []).append(effect)
    for why, waiting in unclear.items():
        log.warning("slurm_poll_postponed", jobs=len(waiting), error=why)
        context.ledger.effects.postpone(waiting, retry_delay_s(max(effect.attempts for effect in waiting)), why)


def _now_s(context: WorkerContext, sights: Iterable[MatchResult]) -> int:
    """The site's time (Unix time) if a job has not begun or is suspended, else 0. A job that runs shows the time
    itself: its start and its seconds.
    """
    stand_still = any(sight.seen is not None and sight.seen.is_stalled for sight in sights)
    return context.slurm.cluster.now_s() if stand_still else 0


def _recognised(
    context: WorkerContext, jobs: Iterable[Job], sights: Mapping[JobId, MatchResult], now_s: int
) -> dict[JobId, JobChange]:
    """The jobs for which SLURM shows a run that the ledger does not know: the first run, or a run after a requeue."""
    pairs = [(job, sights[job.job_id].seen) for job in jobs]
    new = [(job, seen) for job, seen in pairs if seen is not None and seen.submit_s != job.slurm_submit_s]
    unseen = {seen.slurm_id for job, seen in new if seen.restarts and not job.runs}
    submissions = context.ledger.journal.submissions(unseen) if unseen else {}
    found = dict[JobId, JobChange]()
    for job, seen in new:
        if job.slurm_submit_s is not None:
            log.warning("slurm_job_requeued", job_id=job.job_id, slurm_id=job.slurm_id, restarts=seen.restarts)
        known = submissions.get(job.job_id)
        since_s = None if known is None else int(known.called_s)
        event = SlurmJobIdentified(seen.slurm_id, seen.submit_s, seen.sighting(now_s), since_s)
        found[job.job_id] = JobChange(job.job_id, event)
    return found


def _runs_asked(
    context: WorkerContext,
    jobs: Mapping[JobId, Job],
    sights: Mapping[JobId, MatchResult],
    attempts: Mapping[JobId, int],
) -> dict[JobId, MatchResult]:
    """Accounting's answer for ended jobs with a run that the looks did not see from its start to its end. Accounting
    may learn of a run some seconds after slurmctld has ended it, so the job is asked for at several looks.
    """
    if not context.slurm.cluster.has_accounting:
        return {}
    ended = [
        job
        for job in jobs.values()
        if (seen := sights[job.job_id].seen)
        and seen.phase is Phase.ENDED
        and not is_exact(runs_after(job.runs, seen.sighting(0), 0))
    ]
    told = look_at(context, ended, {}) if ended else {}
    found = dict[JobId, MatchResult]()
    for job in ended:
        seen, sight = sights[job.job_id].seen, told[job.job_id]
        if seen is None:
            continue
        if sight.seen is not None and sight.seen.earlier_runs >= seen.restarts:
            known = replace(seen, earlier_s=sight.seen.earlier_s, earlier_runs=sight.seen.earlier_runs)
            found[job.job_id] = MatchResult(known)
        elif attempts[job.job_id] < ASKED_FOR_RUNS:
            found[job.job_id] = MatchResult(unclear=sight.unclear or "accounting has not all runs of the job yet")
    return found


def _what(seen: JobRecord | None, said: Outcome | None, now_s: int) -> Event:
    if seen is None:
        return SlurmPendingObserved(NOT_LISTED) if said is None else SlurmCompleted(said)
    if seen.phase is Phase.ENDED:
        before_s = seen.earlier_s if seen.earlier_runs else None
        return SlurmCompleted(seen.outcome(), before_s, seen.earlier_runs, may_requeue=seen.may_requeue)
    run = seen.sighting(now_s)
    return (
        SlurmRunningObserved(seen.state, run) if seen.phase is Phase.RUNNING else SlurmPendingObserved(seen.shown, run)
    )


def _stalled(context: WorkerContext, sights: Mapping[JobId, MatchResult]) -> dict[JobId, str]:
    """The jobs that SLURM has shown for too long in a state that leads to no end, and why an operator must look."""
    odd = {job_id: sight.seen for job_id, sight in sights.items() if sight.seen and is_unexpected_state(sight.seen)}
    looks = context.ledger.journal.looks(odd, LOOKED_BACK_S) if odd else {}
    found = {job_id: stall_reason(seen, looks.get(job_id, ())) for job_id, seen in odd.items()}
    return {job_id: why for job_id, why in found.items() if why is not None}


def _believed(context: WorkerContext, forgotten: Sequence[Job]) -> Mapping[JobId, Outcome | ConflictingOutcomes]:
    """How jobs ended that SLURM has forgotten, where a plugin reported an end that can be true. At a site with
    accounting, callbacks are not believed: accounting knows the end, or the end stays unknown.
    """
    slurm, asked = context.slurm, {job.job_id: job.slurm_id for job in forgotten if job.slurm_id is not None}
    if not asked or not slurm.trust_callbacks or slurm.cluster.has_accounting:
        return {}
    heard = context.ledger.inbox.about(asked)
    submissions = context.ledger.journal.submissions(set(asked.values()))
    suspended = context.ledger.journal.ever_suspended(asked)
    found = dict[JobId, Outcome | ConflictingOutcomes]()
    for job in forgotten:
        called_s = submissions[job.job_id].called_s if job.job_id in submissions else 0.0
        evidence = [row for row in heard.get(job.job_id, ()) if row.is_evidence]
        said = [CallbackRecord(row.status, row.duration_s, row.exit_code, row.received_s) for row in evidence]
        outcome = outcome_from_callbacks(job, called_s, said, suspended=job.job_id in suspended)
        if isinstance(outcome, Outcome):
            log.warning("outcome_from_callback", job_id=job.job_id, slurm_id=job.slurm_id, elapsed_s=outcome.elapsed_s)
        if outcome is not None:
            found[job.job_id] = outcome
    return found
