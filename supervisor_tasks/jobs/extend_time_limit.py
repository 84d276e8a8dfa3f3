"""Top up: SLURM gets the absolute time limit of a job, so that twice is the same as once; and a job that waits, and whose owner
asks for more than was paid for, gets its size back.
"""

import structlog

from supervisor_tasks.events import Carried, Event, LimitApplied
from supervisor_tasks.job import Job, Kind, SlurmId
from supervisor_tasks.jobs.paid import paid_for
from supervisor_tasks.jobs.size_rules import TIME_LIMIT, excesses
from supervisor_tasks.journey.witness import record_of
from supervisor_tasks.site import Site
from supervisor_tasks.slurm.output import Seen, SlurmRejectedError
from supervisor_tasks.slurm.size import Size
from supervisor_tasks.slurm.states import Phase

log = structlog.get_logger()


def top_up(site: Site, job: Job) -> Event:
    """Set the limit to what was claimed and all top-ups, less what earlier runs have used; not that of a stranger's job which
    has the id meanwhile. A limit is lowered because of a requeue: one that the owner has set lower still stays.
    """
    if job.slurm_id is None:
        return Carried(Kind.TOP_UP)
    seen = record_of(site, job)
    if seen is not None and not _is_lower_already(job, seen):
        site.slurm.cluster.set_time_limit(job.slurm_id, job.run_limit_min)
    if seen is not None and seen.size is not None and seen.phase is Phase.WAITING:
        _put_back(site, job, job.slurm_id, seen.size)
    return LimitApplied(job.run_limit_min)


def _is_lower_already(job: Job, seen: Seen) -> bool:
    lowered = job.applied_limit_min is not None and job.run_limit_min < job.applied_limit_min
    shown_min = None if seen.size is None else seen.size.limit_min
    return lowered and shown_min is not None and shown_min <= job.run_limit_min


def _put_back(site: Site, job: Job, slurm_id: SlurmId, size: Size) -> None:
    """The next look shows what has come of it, and whether the job is to be cancelled."""
    cluster = site.slurm.cluster
    paid = paid_for(job, cluster.partition, compares_sizes=cluster.compares_sizes)
    found = [excess for excess in excesses(size, paid) if excess.of != TIME_LIMIT]
    for words in dict.fromkeys(excess.undo for excess in found if excess.undo):
        try:
            cluster.put_back(slurm_id, words)
        except SlurmRejectedError as error:
            log.warning("not_put_back", job_id=job.job_id, slurm_id=slurm_id, words=words, error=str(error))
    if found:
        log.warning("put_back", job_id=job.job_id, slurm_id=slurm_id, found=[str(excess) for excess in found])
