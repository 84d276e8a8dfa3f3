"""The seconds of a job's earlier runs, from the callbacks that the site's own hooks
sent at the end of each run.

A look shows only the last run, and no look shows when an earlier one ended. If
accounting (where there is any) does not have it, the hooks' callbacks have it. Only
proven callbacks count, because any other could make a bill smaller. If one is missing,
or cannot be about its run, the most that the run can have taken is billed.
"""

from collections.abc import Iterable, Mapping

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.callback_fallback import (
    ENDED,
    CallbackRecord,
    was_resized,
)
from supervisor_tasks.jobs.events import EarlierRunsReported
from supervisor_tasks.jobs.model import Job, JobId
from supervisor_tasks.jobs.runs import (
    RunEnd,
    Runs,
    is_exact,
    runs_after_look,
    with_ends,
)
from supervisor_tasks.jobs.wait_for_runs import LooksBefore, waits_for_answers
from supervisor_tasks.ledger.callbacks import CallbackSeen
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.slurm.job_matching import MatchResult, records_by_job
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import JobRecord

ROUNDED_S = 1  # SLURM's whole seconds, of a duration and of two times


def runs_from_callbacks(
    context: WorkerContext,
    jobs: Mapping[JobId, Job],
    matches: Mapping[JobId, MatchResult],
    looks: Mapping[JobId, LooksBefore],
) -> tuple[dict[JobId, JobChange], dict[JobId, MatchResult]]:
    """What the hooks reported about the earlier runs of each job, as changes; and
    unclear matches for the jobs whose end waits for a missing callback. `looks` are the
    looks before this one that saw a job ended without all of its runs. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    unsure = _unsure(jobs, matches)
    if not unsure:
        return {}, {}
    callbacks = context.ledger.callbacks.about(
        {job_id: seen.slurm_id for job_id, seen in unsure.items()}
    )
    changes = dict[JobId, JobChange]()
    waits = dict[JobId, MatchResult]()
    for job_id, seen in unsure.items():
        ends = proven_ends(callbacks[job_id])
        earlier = ends_of_earlier_runs(seen, ends)
        if is_exact(with_ends(_runs(jobs[job_id], seen), earlier)):
            changes[job_id] = JobChange(job_id, EarlierRunsReported(earlier))
        elif is_awaited(seen, ends) and waits_for_answers(looks.get(job_id, ())):
            waits[job_id] = MatchResult(
                unclear="the hooks have not reported the ends of all runs of the job yet"
            )
    return changes, waits


def evidence(callbacks: Iterable[CallbackSeen]) -> list[CallbackRecord]:
    """The callbacks by which a job may be billed."""
    return [
        CallbackRecord(each.status, each.duration_s, each.exit_code, each.received_s)
        for each in callbacks
        if each.is_evidence
    ]


def proven_ends(callbacks: Iterable[CallbackSeen]) -> list[RunEnd]:
    """The end of each run, from what callers with the site's key reported. Empty if
    the job was resized: the seconds at its end are then those since the resize.
    """
    proven = evidence(each for each in callbacks if each.proven)
    if was_resized(proven):
        return []
    return [
        RunEnd(end.duration_s, int(end.received_s))
        for end in proven
        if end.status in ENDED
    ]


def ends_of_earlier_runs(seen: JobRecord, ends: list[RunEnd]) -> tuple[RunEnd, ...]:
    """The end of each earlier run, in order, from all ends that the hooks reported.
    Empty if one is missing or too many came. For an ended job, the last end must be
    that of the run that SLURM shows.
    """
    has_ended = seen.phase is Phase.ENDED
    if len(ends) != seen.restarts + has_ended:
        return ()
    if has_ended and abs(ends[-1].elapsed_s - seen.elapsed_s) > ROUNDED_S:
        return ()
    return tuple(ends[: seen.restarts])


def is_awaited(seen: JobRecord, ends: list[RunEnd]) -> bool:
    """Whether the hooks report this job, and may report more of its ends soon."""
    return seen.phase is Phase.ENDED and 0 < len(ends) <= seen.restarts


def _runs(job: Job, seen: JobRecord) -> Runs:
    """The job's runs after the look that gave this record."""
    return runs_after_look(job.runs, seen.sighting(0), 0)


def _unsure(
    jobs: Mapping[JobId, Job], matches: Mapping[JobId, MatchResult]
) -> dict[JobId, JobRecord]:
    """SLURM's records of the jobs that it requeued, if neither accounting nor callbacks
    before have reported the seconds of all earlier runs.
    """
    unsure = dict[JobId, JobRecord]()
    for job_id, seen in records_by_job(matches).items():
        if seen.restarts <= seen.earlier_runs:
            continue
        if not is_exact(_runs(jobs[job_id], seen)):
            unsure[job_id] = seen
    return unsure
