"""Fetch: the script of a claimed job."""

from supervisor_tasks.events import Claimed, Event, ScriptFetched, ScriptUnavailable
from supervisor_tasks.job import Job
from supervisor_tasks.jobdefs import Script, ScriptRefusedError, ScriptUnavailableError
from supervisor_tasks.site import Site

REFUSED_TRIES = 5  # whoever is refused may have met a service that was just restarted, or whose node is a block behind
REFUSED_FOR_S = 30.0  # since the claim


def fetch(site: Site, job: Job, tries: int) -> Event:
    """Ask the job definition service for the script; its final no ends the job. `tries` counts this one too. Raises
    TransientError.
    """
    try:
        script = _asked(site, job, tries)
    except (ScriptUnavailableError, ScriptRefusedError) as error:
        if isinstance(error, ScriptRefusedError) and not _is_final(site, job, tries):
            raise
        return ScriptUnavailable(str(error))
    if "\0" in script.text:
        return ScriptUnavailable("job definition service: the script holds a NUL byte, which no batch script may")
    return ScriptFetched(script.text, script.grid_logger_url)


def _asked(site: Site, job: Job, tries: int) -> Script:
    """The script. A refusal that would be final is asked for twice, with a new challenge: the tries before may all have met a
    service that was down, and this one its restart.
    """
    try:
        return site.chain.job_definitions.fetch(job)
    except ScriptRefusedError:
        if not _is_final(site, job, tries):
            raise
        return site.chain.job_definitions.fetch(job)


def _is_final(site: Site, job: Job, tries: int) -> bool:
    return refused_for_good(tries, site.ledger.journal.seconds_since(job.job_id, Claimed))


def refused_for_good(tries: int, claimed_ago_s: float | None) -> bool:
    """Whether a service that refuses us has had the tries and the time to think otherwise. Who does not know when the job
    was claimed asks on.
    """
    return tries >= REFUSED_TRIES and claimed_ago_s is not None and claimed_ago_s >= REFUSED_FOR_S
