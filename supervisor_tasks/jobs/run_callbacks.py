"""The seconds of a job's earlier runs, of what the site's own hooks said at the end of each.

A look tells of the last run alone. Where no look saw an earlier run from its start to its end, and accounting, if there is
any, does not have it either, the hooks' callbacks do: one came at the end of each run. Only callbacks that prove themselves
count, as anything else could make a bill smaller. Where one is missing, the most that the run can have taken is billed.
"""

from collections.abc import Mapping

from supervisor_tasks.events import EarlierRunsTold
from supervisor_tasks.job import Job, JobId
from supervisor_tasks.jobs.runs import is_exact
from supervisor_tasks.jobs.runs import seen as runs_after
from supervisor_tasks.journey.hearsay import ENDED
from supervisor_tasks.ledger.store import Change
from supervisor_tasks.site import Site
from supervisor_tasks.slurm.identity import Sight
from supervisor_tasks.slurm.output import Seen
from supervisor_tasks.slurm.states import Phase

AWAITED_LOOKS = 5  # at a job that has ended, for the callbacks that are missing
ROUNDED_S = 1  # SLURM's whole seconds, of a duration and of two times


def runs_told(
    site: Site, jobs: Mapping[JobId, Job], sights: Mapping[JobId, Sight], attempts: Mapping[JobId, int]
) -> tuple[dict[JobId, Change], dict[JobId, Sight]]:
    """What the hooks said of the earlier runs of each job, as a change; and the jobs whose ends wait for it, as sights that are
    unclear.
    """
    unsure = {job_id: seen for job_id, job in jobs.items() if (seen := sights[job_id].seen) and _is_unsure(job, seen)}
    heard = site.ledger.inbox.about({job_id: seen.slurm_id for job_id, seen in unsure.items()}) if unsure else {}
    changes, waits = dict[JobId, Change](), dict[JobId, Sight]()
    for job_id, seen in unsure.items():
        ends_s = [row.duration_s for row in heard[job_id] if row.proven and row.status in ENDED]
        earlier_s = ends_of_earlier_runs(seen, ends_s)
        if earlier_s is not None:
            changes[job_id] = Change(job_id, EarlierRunsTold(earlier_s))
        elif is_awaited(seen, ends_s) and attempts[job_id] < AWAITED_LOOKS:
            waits[job_id] = Sight(unclear="the hooks have not told the ends of all runs of the job yet")
    return changes, waits


def ends_of_earlier_runs(seen: Seen, ends_s: list[int]) -> tuple[int, ...] | None:
    """The seconds of each earlier run, of all ends that were told, in order; None where one is missing, or too many came. Of a
    job that has ended, the last end is that of the run that SLURM shows.
    """
    if seen.phase is not Phase.ENDED:
        return tuple(ends_s) if len(ends_s) == seen.restarts else None
    if len(ends_s) != seen.restarts + 1 or abs(ends_s[-1] - seen.elapsed_s) > ROUNDED_S:
        return None
    return tuple(ends_s[:-1])


def is_awaited(seen: Seen, ends_s: list[int]) -> bool:
    """Whether the hooks tell of this job, and may be about to tell more of it than they have."""
    return seen.phase is Phase.ENDED and 0 < len(ends_s) <= seen.restarts


def _is_unsure(job: Job, seen: Seen) -> bool:
    """Whether neither looks nor accounting have told all earlier runs of a job that SLURM requeued."""
    return seen.restarts > seen.earlier_runs and not is_exact(runs_after(job.runs, seen.sighting(0), 0))
