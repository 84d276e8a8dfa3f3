"""Top up: SLURM gets the absolute time limit of a job, so that twice is the same as once."""

from supervisor_tasks.events import Carried, Event, LimitApplied
from supervisor_tasks.job import Job, Kind
from supervisor_tasks.journey.witness import record_of
from supervisor_tasks.site import Site


def top_up(site: Site, job: Job) -> Event:
    """Set the limit to what was claimed and all top-ups; not that of a stranger's job which has the id meanwhile."""
    if job.slurm_id is None:
        return Carried(Kind.TOP_UP)
    if record_of(site, job) is not None:
        site.slurm.cluster.set_time_limit(job.slurm_id, job.limit_min)
    return LimitApplied(job.limit_min)
