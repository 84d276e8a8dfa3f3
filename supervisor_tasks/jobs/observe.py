"""What one look finds out about jobs: from SLURM, from accounting and from the stored
callbacks.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.callback_fallback import (
    ENDED_WITHOUT_ITS_SCRIPT,
    ConflictingOutcomes,
    end_before_slurms,
    outcome_from_callbacks,
)
from supervisor_tasks.jobs.events import (
    EarlierRunsAwaited,
    FalseSlurmId,
    LaunchFailed,
    SlurmJobIdentified,
    SubmitStarted,
)
from supervisor_tasks.jobs.false_slurm_ids import false_ids
from supervisor_tasks.jobs.launch_failures import launch_failures
from supervisor_tasks.jobs.model import Job, JobId, Outcome, State
from supervisor_tasks.jobs.run_callbacks import evidence, runs_from_callbacks
from supervisor_tasks.jobs.site_choices import with_site_choices
from supervisor_tasks.jobs.stalled import PATIENCE_S, is_unexpected_state, stall_reason
from supervisor_tasks.jobs.wait_for_runs import (
    LooksBefore,
    counts,
    waits_for_accounting,
)
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.ledger.outbox import OpenEffect
from supervisor_tasks.slurm.job_matching import MatchResult, records_by_job
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.not_started import FAILS_WITHIN_S
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm_lookup.lookup import look_at

log = structlog.get_logger()

LOOKED_BACK_S = 2 * PATIENCE_S


@dataclass(frozen=True, slots=True)
class Observed:
    """What one look knows of its jobs, by their ids.

    `matches` has SLURM's record of each job. A job in `false_ids` is not in SLURM under
    its id. A job in `failed` was not started by its node. A job in `stalled` needs the
    operator, for the reason beside it. A job in `just_begun` has run for less than a
    second. `reported` has the end that callbacks report of a job that SLURM has
    forgotten, or whose first end it has forgotten. `runs` are changes about a job's
    runs; they are recorded before its state changes. `awaited` are recorded for jobs
    whose matches are unclear because runs are missing. `now_s` is SLURM's time, 0 if
    not needed.
    """

    jobs: Mapping[JobId, Job]
    matches: Mapping[JobId, MatchResult]
    false_ids: Mapping[JobId, FalseSlurmId]
    failed: Mapping[JobId, LaunchFailed]
    stalled: Mapping[JobId, str]
    reported: Mapping[JobId, Outcome | ConflictingOutcomes]
    runs: Mapping[JobId, Sequence[JobChange]]
    awaited: Sequence[JobChange]
    just_begun: frozenset[JobId]
    now_s: int


def observe(context: WorkerContext, effects: Sequence[OpenEffect]) -> Observed:
    """Ask SLURM, accounting and the stored callbacks about the jobs of these effects. A
    match becomes unclear where a later question about its job has no answer yet.

    Raises SlurmUnavailableError, SshUnavailableError or AnotherSlurmError, when the
    look learns nothing about any job; a retry helps. Raises LedgerUnavailableError,
    when the database does not answer; a retry helps.
    """
    jobs = context.ledger.jobs({effect.job_id for effect in effects})
    matches = look_at(context, jobs.values())
    matches |= with_site_choices(context, jobs, matches)
    with_false_ids = false_ids(context, jobs, matches)
    failed = launch_failures(context, jobs, matches)
    forgotten = list[Job]()
    for job_id, job in jobs.items():
        if matches[job_id].unknown and job_id not in with_false_ids:
            forgotten.append(job)
    reported = _reported_ends(context, forgotten)
    stalled = _stalled(context, matches)
    now_s = _now_s(context, jobs, matches)
    new_runs = _new_runs(context, jobs, matches, now_s)
    ended = _ended_after_a_requeue(matches)
    looks = _looks_before(context, ended)
    accounted, unanswered = _with_accounted_runs(context, jobs, ended, looks)
    matches |= accounted
    earlier_runs, waiting = runs_from_callbacks(context, jobs, matches, looks)
    matches |= waiting
    reported |= _ends_before_slurms(context, jobs, matches)
    runs = {job_id: list[JobChange]() for job_id in jobs}
    for job_id, change in chain(new_runs.items(), earlier_runs.items()):
        runs[job_id].append(change)
    just_begun = {
        job_id
        for job_id, seen in records_by_job(matches).items()
        if _has_just_begun(jobs[job_id], seen)
    }
    return Observed(
        jobs=jobs,
        matches=matches,
        false_ids=with_false_ids,
        failed=failed,
        stalled=stalled,
        reported=reported,
        runs=runs,
        awaited=_awaited(ended, matches, looks, unanswered),
        just_begun=frozenset(just_begun),
        now_s=now_s,
    )


def _has_just_begun(job: Job, seen: JobRecord) -> bool:
    """Whether SLURM has run the job for FAILS_WITHIN_S at most, and no look has seen it
    run. Its node may fail to start it; a look a second later shows that, and it is then
    no run.
    """
    is_new = (job.state, seen.state) == (State.QUEUED, "RUNNING")
    return is_new and seen.elapsed_s <= FAILS_WITHIN_S


def _reported_ends(
    context: WorkerContext, forgotten: Sequence[Job]
) -> dict[JobId, Outcome | ConflictingOutcomes]:
    """How jobs ended that SLURM has forgotten, where a plugin reported an end that can
    be true. At a site with accounting, callbacks are not believed: accounting knows the
    end, or the end stays unknown.
    """
    slurm_ids = {
        job.job_id: job.slurm_id for job in forgotten if job.slurm_id is not None
    }
    if not slurm_ids or not context.slurm.trust_callbacks:
        return {}
    if context.slurm.cluster.queries.has_accounting:
        return {}
    callbacks = context.ledger.callbacks.about(slurm_ids)
    submissions = context.ledger.journal.submissions(set(slurm_ids.values()))
    suspended = context.ledger.journal.ever_suspended(slurm_ids)
    ends = dict[JobId, Outcome | ConflictingOutcomes]()
    for job in forgotten:
        called_s = 0.0
        if job.job_id in submissions:
            called_s = submissions[job.job_id].called_s
        believed_callbacks = evidence(callbacks.get(job.job_id, ()))
        end = outcome_from_callbacks(
            job, called_s, believed_callbacks, suspended=job.job_id in suspended
        )
        if end is None:
            continue
        ends[job.job_id] = end
        if isinstance(end, Outcome):
            log.warning(
                "outcome_from_callback",
                job_id=job.job_id,
                slurm_id=job.slurm_id,
                elapsed_s=end.elapsed_s,
            )
    return ends


def _ends_before_slurms(
    context: WorkerContext,
    jobs: Mapping[JobId, Job],
    matches: Mapping[JobId, MatchResult],
) -> dict[JobId, Outcome]:
    """The ends that our own hook reported of jobs that SLURM has ended once more."""
    records = _ended_without_their_scripts(matches)
    if not records or not context.slurm.trust_callbacks:
        return {}
    slurm_ids = {job_id: seen.slurm_id for job_id, seen in records.items()}
    callbacks = context.ledger.callbacks.about(slurm_ids)
    submissions = context.ledger.journal.submissions(set(slurm_ids.values()))
    suspended = context.ledger.journal.ever_suspended(slurm_ids)
    ends = dict[JobId, Outcome]()
    for job_id in records.keys() & submissions.keys() - suspended:
        seen = records[job_id]
        proven = evidence(each for each in callbacks[job_id] if each.proven)
        called_s = submissions[job_id].called_s
        end = end_before_slurms(jobs[job_id], called_s, seen, proven)
        if end is not None:
            ends[job_id] = end
            log.warning(
                "slurm_ended_a_job_twice",
                job_id=job_id,
                slurm_id=seen.slurm_id,
                first=str(end),
                second=str(seen.outcome()),
            )
    return ends


def _ended_without_their_scripts(
    matches: Mapping[JobId, MatchResult],
) -> dict[JobId, JobRecord]:
    return {
        job_id: seen
        for job_id, seen in records_by_job(matches).items()
        if seen.state in ENDED_WITHOUT_ITS_SCRIPT
    }


def _stalled(
    context: WorkerContext, matches: Mapping[JobId, MatchResult]
) -> dict[JobId, str]:
    """The jobs that SLURM has shown for too long in a state that leads to no end, and
    why an operator must look.
    """
    unexpected = {
        job_id: seen
        for job_id, seen in records_by_job(matches).items()
        if is_unexpected_state(seen)
    }
    if not unexpected:
        return {}
    looks = context.ledger.journal.looks(unexpected, LOOKED_BACK_S)
    stalled = dict[JobId, str]()
    for job_id, seen in unexpected.items():
        reason = stall_reason(seen, looks.get(job_id, ()))
        if reason is not None:
            stalled[job_id] = reason
    return stalled


def _now_s(
    context: WorkerContext,
    jobs: Mapping[JobId, Job],
    matches: Mapping[JobId, MatchResult],
) -> int:
    """The site's time (Unix time) if a job has not begun, or is or was suspended, else
    0. Another job that runs shows the time itself: its start and its seconds.
    """
    for job_id, seen in records_by_job(matches).items():
        if seen.is_stalled or _was_suspended(jobs[job_id]):
            return context.slurm.cluster.clock.now_s()
    return 0


def _was_suspended(job: Job) -> bool:
    return bool(job.runs) and job.runs[-1].suspended


def _new_runs(
    context: WorkerContext,
    jobs: Mapping[JobId, Job],
    matches: Mapping[JobId, MatchResult],
    now_s: int,
) -> dict[JobId, JobChange]:
    """The jobs for which SLURM shows a run that the ledger does not know: the first
    run, or a run after a requeue.
    """
    new = list[tuple[Job, JobRecord]]()
    for job_id, seen in records_by_job(matches).items():
        if seen.submit_s != jobs[job_id].slurm_submit_s:
            new.append((jobs[job_id], seen))
    submitted_s = submitted_s_of_requeued(context, new, now_s)
    changes = dict[JobId, JobChange]()
    for job, seen in new:
        if job.slurm_submit_s is not None:
            log.warning(
                "slurm_job_requeued",
                job_id=job.job_id,
                slurm_id=job.slurm_id,
                restarts=seen.restarts,
            )
        run = seen.sighting(now_s)
        event = SlurmJobIdentified(
            seen.slurm_id, seen.submit_s, run, submitted_s.get(job.job_id)
        )
        changes[job.job_id] = JobChange(job.job_id, event)
    return changes


def submitted_s_of_requeued(
    context: WorkerContext, new: Sequence[tuple[Job, JobRecord]], now_s: int
) -> dict[JobId, int]:
    """When, by SLURM's clock, the supervisor began to submit the jobs that SLURM has
    requeued before a look saw them. `now_s` is SLURM's time, 0 if it was not asked for.

    The database's clock and SLURM's may differ by any time. So the database measures
    how long ago a submission began, and SLURM's present time less that is the result.
    SLURM's time is asked for first: what passes meanwhile makes the result earlier, and
    never too late.

    Raises SlurmUnavailableError, SshUnavailableError or LedgerUnavailableError, when
    SLURM, the login node or the database does not answer; a retry helps.
    """
    requeued = [job.job_id for job, seen in new if seen.restarts and not job.runs]
    if not requeued:
        return {}
    now_s = now_s or context.slurm.cluster.clock.now_s()
    ages_s = context.ledger.journal.last_ages_s(requeued, SubmitStarted)
    return {job_id: math.floor(now_s - age_s) for job_id, age_s in ages_s.items()}


def _with_accounted_runs(
    context: WorkerContext,
    jobs: Mapping[JobId, Job],
    ended: Mapping[JobId, JobRecord],
    looks: Mapping[JobId, LooksBefore],
) -> tuple[dict[JobId, MatchResult], set[JobId]]:
    """The matches of these ended jobs with accounting's answer, and the jobs that wait
    because accounting did not answer. The looks know only the most that one of their
    runs can have taken, and its owner may keep the end of a run from the hooks.
    Accounting may learn of a run some seconds after slurmctld has ended it, so the job
    is asked for at several looks.
    """
    if not ended or not context.slurm.cluster.queries.has_accounting:
        return {}, set()
    accounted = look_at(context, [jobs[job_id] for job_id in ended], {})
    changed = dict[JobId, MatchResult]()
    unanswered = set[JobId]()
    for job_id, seen in ended.items():
        answer = accounted[job_id]
        if answer.record is not None and answer.record.earlier_runs >= seen.restarts:
            record = replace(
                seen,
                earlier_s=answer.record.earlier_s,
                earlier_runs=answer.record.earlier_runs,
                earlier_sizes=answer.record.earlier_sizes,
            )
            changed[job_id] = MatchResult(record)
        elif waits_for_accounting(looks.get(job_id, ()), answer.unclear):
            reason = answer.unclear or "accounting has not all runs of the job yet"
            changed[job_id] = MatchResult(unclear=reason)
            if answer.unclear:
                unanswered.add(job_id)
    return changed, unanswered


def _looks_before(
    context: WorkerContext, ended: Collection[JobId]
) -> Mapping[JobId, LooksBefore]:
    """The looks before this one that saw these jobs ended without all of their runs."""
    if not ended:
        return {}
    return context.ledger.journal.ages_s(ended, EarlierRunsAwaited)


def _awaited(
    ended: Collection[JobId],
    matches: Mapping[JobId, MatchResult],
    looks: Mapping[JobId, LooksBefore],
    unanswered: Collection[JobId],
) -> list[JobChange]:
    """The changes that count this look for the jobs whose end waits for runs."""
    changes = list[JobChange]()
    for job_id in ended:
        before = looks.get(job_id, ())
        if matches[job_id].unclear and counts(
            before, answered=job_id not in unanswered
        ):
            changes.append(JobChange(job_id, EarlierRunsAwaited()))
    return changes


def _ended_after_a_requeue(
    matches: Mapping[JobId, MatchResult],
) -> dict[JobId, JobRecord]:
    """SLURM's records of the ended jobs that SLURM has requeued. slurmctld remembers
    them: accounting's record of another job has all its runs already.
    """
    return {
        job_id: seen
        for job_id, seen in records_by_job(matches).items()
        if seen.phase is Phase.ENDED and seen.restarts
    }
