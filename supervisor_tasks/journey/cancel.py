"""Cancel: SLURM is asked to end the job. What really ran is reported when SLURM says so."""

from supervisor_tasks.events import Carried, Event
from supervisor_tasks.job import Job, Kind
from supervisor_tasks.journey.submit import find, require_settled
from supervisor_tasks.site import Site


def cancel(site: Site, job: Job) -> Event:
    """Cancel the job by the SLURM id in the ledger; after an unclear submission, whatever is recognised as the job once
    nothing of it can arrive any more.
    """
    if job.slurm_id is not None:
        ids = [job.slurm_id]
    else:
        require_settled(site, job)
        ids = [seen.slurm_id for seen in find(site, job)]
    for slurm_id in ids:
        site.slurm.cluster.cancel(slurm_id)
    return Carried(Kind.CANCEL)
