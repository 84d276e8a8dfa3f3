"""Fetch: the script of a claimed job."""

from supervisor_tasks.events import Claimed, Event, ScriptFetched, ScriptUnavailable
from supervisor_tasks.job import Job
from supervisor_tasks.jobdefs import ScriptRefusedError, ScriptUnavailableError
from supervisor_tasks.site import Site

REFUSED_TRIES = 5  # whoever is refused may have met a service that was just restarted, or whose node is a block behind
REFUSED_FOR_S = 30.0  # since the claim


def fetch(site: Site, job: Job, tries: int) -> Event:
    """Ask the job definition service for the script; its final no ends the job. `tries` counts this one too."""
    try:
        script = site.chain.job_definitions.fetch(job)
    except ScriptUnavailableError as error:
        return ScriptUnavailable(str(error))
    except ScriptRefusedError as error:
        if not refused_for_good(tries, site.ledger.journal.seconds_since(job.job_id, Claimed)):
            raise
        return ScriptUnavailable(str(error))
    if "\0" in script.text:
        return ScriptUnavailable("job definition service: the script holds a NUL byte, which no batch script may")
    return ScriptFetched(script.text, script.grid_logger_url)


def refused_for_good(tries: int, claimed_ago_s: float | None) -> bool:
    """Whether a service that refuses us has had the tries and the time to think otherwise. Who does not know when the job
    was claimed asks on.
    """
    return tries >= REFUSED_TRIES and claimed_ago_s is not None and claimed_ago_s >= REFUSED_FOR_S
