"""Tell the user: why a job failed or was given back, as lines in the grid logger."""

from supervisor_tasks.events import Carried, Event
from supervisor_tasks.job import Job, Kind
from supervisor_tasks.site import Site


def tell_user(site: Site, job: Job) -> Event:
    """Hand the job's message to the grid logger that the script came with; without one there is nowhere to write."""
    if job.grid_logger_url and job.message:
        site.grid_logger.write(job.grid_logger_url, job.customer, job.job_id, job.message.splitlines())
    return Carried(Kind.TELL_USER)
