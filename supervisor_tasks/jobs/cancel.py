"""Cancel: SLURM is asked to end the job. What really ran is reported when SLURM says so.

An id alone is not the job: after a wrap, or when slurmctld has lost its state, a stranger's job may have it. The admin could
end that too. So SLURM's record is recognised first, and scancel is told whose job it may end.
"""

from supervisor_tasks.events import Carried, Event
from supervisor_tasks.job import Job, Kind
from supervisor_tasks.jobs.submit import find, require_settled
from supervisor_tasks.journey.known_slurm import require_known
from supervisor_tasks.journey.witness import record_of
from supervisor_tasks.site import Site
from supervisor_tasks.slurm.states import Phase


def cancel(site: Site, job: Job) -> Event:
    """Cancel the job that has the SLURM id in the ledger, if it is ours; after an unclear submission, whatever is recognised
    as the job once nothing of it can arrive any more. It is not to be requeued: as long as SLURM remembers it, SLURM would run
    also a job that has ended, or was cancelled, once more.
    """
    if job.slurm_id is not None:
        seen = record_of(site, job)
        ids = [job.slurm_id] if seen is not None else []
        if seen is not None and seen.may_requeue:
            if seen.phase is Phase.ENDED:
                site.slurm.cluster.hold_again(job.slurm_id)
            site.slurm.cluster.forbid_requeue(job.slurm_id)
    else:
        require_known(site)
        require_settled(site, job)
        ids = [seen.slurm_id for seen in find(site, job)]
    for slurm_id in ids:
        site.slurm.cluster.cancel(slurm_id, job.customer)
    return Carried(Kind.CANCEL)
