"""Fetch: the script of a claimed job."""

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.grid.job_definitions import Script, ScriptRefusedError, ScriptUnavailableError
from supervisor_tasks.jobs.events import Claimed, Event, ScriptFetched, ScriptUnavailable
from supervisor_tasks.jobs.model import Job

REFUSED_TRIES = 5  # a service that was just restarted, or whose node is a block behind, also refuses
REFUSED_FOR_S = 30.0  # since the claim


def fetch(context: WorkerContext, job: Job, tries: int) -> Event:
    """Ask the job definition service for the script. Its final refusal ends the job. `tries` includes this try. Raises
    TransientError; a retry helps.
    """
    try:
        script = _asked(context, job, tries)
    except (ScriptUnavailableError, ScriptRefusedError) as error:
        if isinstance(error, ScriptRefusedError) and not _is_final(context, job, tries):
            raise
        return ScriptUnavailable(str(error))
    if "\0" in script.text:
        return ScriptUnavailable("job definition service: the script holds a NUL byte, which no batch script may")
    return ScriptFetched(script.text, script.grid_logger_url)


def _asked(context: WorkerContext, job: Job, tries: int) -> Script:
    """The script. If a refusal would be final, the service is asked once more, with a new challenge: it may have been
    down at all earlier tries, and just restarted at this one.
    """
    try:
        return context.chain.job_definitions.fetch(job)
    except ScriptRefusedError:
        if not _is_final(context, job, tries):
            raise
        return context.chain.job_definitions.fetch(job)


def _is_final(context: WorkerContext, job: Job, tries: int) -> bool:
    return refused_for_good(tries, context.ledger.journal.seconds_since(job.job_id, Claimed))


def refused_for_good(tries: int, claimed_ago_s: float | None) -> bool:
    """Whether a refusal is final: after REFUSED_TRIES tries, and REFUSED_FOR_S after the claim. If the time of the
    claim is not known, no refusal is final.
    """
    return tries >= REFUSED_TRIES and claimed_ago_s is not None and claimed_ago_s >= REFUSED_FOR_S
