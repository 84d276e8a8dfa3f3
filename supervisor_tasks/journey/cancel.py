"""Cancel: SLURM is asked to end the job. What really ran is reported when SLURM says so."""

from supervisor_tasks.events import Carried, Event
from supervisor_tasks.job import Job, Kind
from supervisor_tasks.site import Site


def cancel(site: Site, job: Job) -> Event:
    """Cancel the job by the SLURM id in the ledger; after an unclear submission, whatever goes by its name."""
    cluster = site.slurm.cluster
    ids = (
        [job.slurm_id]
        if job.slurm_id is not None
        else [seen.slurm_id for seen in cluster.find(job.customer, job.job_id)]
    )
    for slurm_id in ids:
        cluster.cancel(slurm_id)
    return Carried(Kind.CANCEL)
