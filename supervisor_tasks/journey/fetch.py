"""Fetch: the script of a claimed job."""

from supervisor_tasks.events import Event, ScriptFetched, ScriptUnavailable
from supervisor_tasks.job import Job
from supervisor_tasks.jobdefs import ScriptUnavailableError
from supervisor_tasks.site import Site


def fetch(site: Site, job: Job) -> Event:
    """Ask the job definition service for the script; its final no ends the job."""
    try:
        script = site.chain.job_definitions.fetch(job)
    except ScriptUnavailableError as error:
        return ScriptUnavailable(str(error))
    if "\0" in script.text:
        return ScriptUnavailable("job definition service: the script holds a NUL byte, which no batch script may")
    return ScriptFetched(script.text, script.grid_logger_url)
