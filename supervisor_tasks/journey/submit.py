"""Submit: SLURM has the job, exactly once.

Before sbatch is called, SUBMITTING is committed. Whoever finds a job in that state does not know whether SLURM took it, and
looks before doing anything: for jobs of that name and user, twice, with more than SLURM's MessageTimeout between.
"""

import structlog

from supervisor_tasks.errors import OutcomeUnknownError
from supervisor_tasks.events import Event, SubmitNotFound, SubmitRejected, SubmitStarted, Submitted, SubmitUnclear
from supervisor_tasks.job import Job, State
from supervisor_tasks.ledger.store import Change
from supervisor_tasks.site import Site
from supervisor_tasks.slurm.output import Seen, SlurmRejectedError

log = structlog.get_logger()


def submit(site: Site, job: Job) -> Event:
    """Submit a job that is ready; look for one of which it is not known whether SLURM has it."""
    if job.state is State.SUBMITTING:
        return _look_for(site, job)
    job = site.ledger.record(Change(job.job_id, SubmitStarted(job.limit_min)))[job.job_id]
    if job.state is not State.SUBMITTING or job.script is None:
        return SubmitUnclear("the job is not to be submitted any more")  # cancelled meanwhile; changes nothing
    try:
        limit_min = job.applied_limit_min or job.limit_min
        slurm_id = site.slurm.cluster.submit(job.customer, job.job_id, job.definition, limit_min, job.script)
    except SlurmRejectedError as error:
        return SubmitRejected(str(error))
    except OutcomeUnknownError as error:
        log.warning("submission_unclear", job_id=job.job_id, error=str(error))
        return SubmitUnclear(str(error))
    return Submitted(slurm_id)


def _look_for(site: Site, job: Job) -> Event:
    found = site.slurm.cluster.find(job.customer, job.job_id)
    rejected = [seen for seen in found if _was_rejected(seen)]
    taken = sorted((seen for seen in found if seen not in rejected), key=lambda seen: seen.slurm_id)
    if taken:
        for extra in taken[1:]:
            log.error("extra_submission_cancelled", job_id=job.job_id, slurm_id=extra.slurm_id)
            site.slurm.cluster.cancel(extra.slurm_id)
        return Submitted(taken[0].slurm_id)
    if rejected:
        return SubmitRejected(f"SLURM rejected the job: {rejected[0].reason}")
    return SubmitNotFound()


def _was_rejected(seen: Seen) -> bool:
    """slurmctld keeps a record of what it rejected."""
    return seen.state == "FAILED" and seen.reason == "BadConstraints" and seen.elapsed_s == 0
