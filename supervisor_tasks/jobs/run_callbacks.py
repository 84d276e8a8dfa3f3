"""The seconds of a job's earlier runs, from the callbacks that the site's own hooks
sent at the end of each run.

A look shows only the last run, and no look shows when an earlier one ended. If
accounting (where there is any) does not have it, the hooks' callbacks have it. Only
proven callbacks count, because any other could make a bill smaller. If one is missing,
the most that the run can have taken is billed.
"""

from collections.abc import Iterable, Mapping

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.callback_fallback import ENDED
from supervisor_tasks.jobs.events import EarlierRunsReported
from supervisor_tasks.jobs.missing_runs import LooksBefore, waits_for_answers
from supervisor_tasks.jobs.model import Job, JobId
from supervisor_tasks.jobs.runs import is_exact, runs_after_look
from supervisor_tasks.ledger.callbacks import CallbackSeen
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.slurm.job_matching import MatchResult
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import JobRecord

ROUNDED_S = 1  # SLURM's whole seconds, of a duration and of two times


def runs_from_callbacks(
    context: WorkerContext,
    jobs: Mapping[JobId, Job],
    sights: Mapping[JobId, MatchResult],
    looks: Mapping[JobId, LooksBefore],
) -> tuple[dict[JobId, JobChange], dict[JobId, MatchResult]]:
    """What the hooks reported about the earlier runs of each job, as changes; and
    unclear sights for the jobs whose end waits for a missing callback. `looks` are the
    looks before this one that saw a job ended without all of its runs.
    """
    unsure = _unsure(jobs, sights)
    if not unsure:
        return {}, {}
    callbacks = context.ledger.inbox.about(
        {job_id: seen.slurm_id for job_id, seen in unsure.items()}
    )
    changes = dict[JobId, JobChange]()
    waits = dict[JobId, MatchResult]()
    for job_id, seen in unsure.items():
        ends_s = proven_ends_s(callbacks[job_id])
        earlier_s = ends_of_earlier_runs(seen, ends_s)
        if earlier_s is not None:
            changes[job_id] = JobChange(job_id, EarlierRunsReported(earlier_s))
        elif is_awaited(seen, ends_s) and waits_for_answers(looks.get(job_id, ())):
            waits[job_id] = MatchResult(
                unclear="the hooks have not reported the ends of all runs of the job yet"
            )
    return changes, waits


def proven_ends_s(callbacks: Iterable[CallbackSeen]) -> list[int]:
    """The seconds of each run, from the ends that callers with the site's key
    reported.
    """
    ends_s = list[int]()
    for callback in callbacks:
        if callback.proven and callback.status in ENDED:
            ends_s.append(callback.duration_s)
    return ends_s


def ends_of_earlier_runs(seen: JobRecord, ends_s: list[int]) -> tuple[int, ...] | None:
    """The seconds of each earlier run, in order, from all ends that the hooks reported
    (`ends_s`). None if one is missing or too many came. For an ended job, the last end
    must be that of the run that SLURM shows.
    """
    if seen.phase is not Phase.ENDED:
        if len(ends_s) != seen.restarts:
            return None
        return tuple(ends_s)
    if len(ends_s) != seen.restarts + 1:
        return None
    *earlier_s, last_s = ends_s
    if abs(last_s - seen.elapsed_s) > ROUNDED_S:
        return None
    return tuple(earlier_s)


def is_awaited(seen: JobRecord, ends_s: list[int]) -> bool:
    """Whether the hooks report this job, and may report more of its ends soon."""
    return seen.phase is Phase.ENDED and 0 < len(ends_s) <= seen.restarts


def _unsure(
    jobs: Mapping[JobId, Job], sights: Mapping[JobId, MatchResult]
) -> dict[JobId, JobRecord]:
    """SLURM's records of the jobs that it requeued, if neither accounting nor callbacks
    before have told the seconds of all earlier runs.
    """
    unsure = dict[JobId, JobRecord]()
    for job_id, job in jobs.items():
        seen = sights[job_id].record
        if seen is None or seen.restarts <= seen.earlier_runs:
            continue
        if not is_exact(runs_after_look(job.runs, seen.sighting(0), 0)):
            unsure[job_id] = seen
    return unsure
