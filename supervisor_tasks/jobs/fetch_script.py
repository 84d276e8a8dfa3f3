"""Fetch: the script of a claimed job. Which answers of the service are final:
grid/job_definitions.py.
"""

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.grid.job_definitions import (
    Script,
    ScriptRejectedError,
    ScriptUnavailableError,
)
from supervisor_tasks.jobs.events import (
    Claimed,
    Event,
    ScriptFetched,
    ScriptUnavailable,
)
from supervisor_tasks.jobs.model import Job

# a service that was just restarted, or whose node is a block behind, also rejects
REJECTED_TRIES = 5
REJECTED_FOR_S = 30.0  # since the claim


def fetch(context: WorkerContext, job: Job, tries: int) -> Event:
    """Ask the job definition service for the script. Its final rejection ends the job.
    `tries` includes this try. Raises TransientError, when the service does not answer
    or its rejection is not final yet; a retry helps.
    """
    script: Script | None = None
    asked_again = False
    while script is None:
        try:
            script = context.chain.job_definitions.fetch(job)
        except ScriptUnavailableError as error:
            return ScriptUnavailable(str(error))
        except ScriptRejectedError as error:
            if not _is_final(context, job, tries):
                raise
            # Ask once more, with a new challenge: the service may have been down at all
            # earlier tries, and just restarted at this one.
            if asked_again:
                return ScriptUnavailable(str(error))
            asked_again = True
    if "\0" in script.text:
        return ScriptUnavailable(
            "job definition service: the script has a NUL byte, which a batch script must not have"
        )
    return ScriptFetched(script.text, script.grid_logger_url)


def _is_final(context: WorkerContext, job: Job, tries: int) -> bool:
    claimed_ago_s = context.ledger.journal.last_ages_s([job.job_id], Claimed)
    return rejected_for_good(tries, claimed_ago_s.get(job.job_id))


def rejected_for_good(tries: int, claimed_ago_s: float | None) -> bool:
    """Whether a rejection is final: after REJECTED_TRIES tries, and REJECTED_FOR_S after
    the claim. If the time of the claim is not known, no rejection is final.
    """
    if tries < REJECTED_TRIES or claimed_ago_s is None:
        return False
    return claimed_ago_s >= REJECTED_FOR_S
