"""Steps: one effect of one job each, carried out side by side."""

from collections.abc import Callable

import structlog

from supervisor_tasks.errors import OutcomeUnknownError, PermanentError, TransientError
from supervisor_tasks.events import Event
from supervisor_tasks.job import Job, Kind
from supervisor_tasks.journey import drain
from supervisor_tasks.journey.cancel import cancel
from supervisor_tasks.journey.drain import TRIES_OF_THE_UNFORESEEN
from supervisor_tasks.journey.fetch import fetch
from supervisor_tasks.journey.submit import submit
from supervisor_tasks.journey.tell_user import tell_user
from supervisor_tasks.journey.top_up import top_up
from supervisor_tasks.journey.waiting import wait_s
from supervisor_tasks.ledger.store import Change, OpenEffect
from supervisor_tasks.site import Site

log = structlog.get_logger()

STEPS: dict[Kind, Callable[[Site, Job], Event]] = {
    Kind.FETCH: fetch,
    Kind.SUBMIT: submit,
    Kind.CANCEL: cancel,
    Kind.TOP_UP: top_up,
    Kind.TELL_USER: tell_user,
}


def carry_out(site: Site, effect_id: int) -> None:
    """Carry out one effect and commit its outcome. What fails because somebody does not answer is tried again until it
    is answered; what was answered with no, or fails in a way that nobody foresaw, is parked with its reason.
    """
    leased = site.ledger.lease(STEPS, effect_id)
    if not leased:
        return
    effect = leased[0]
    job = site.ledger.jobs([effect.job_id])[effect.job_id]
    try:
        event = STEPS[effect.kind](site, job)
    except (TransientError, OutcomeUnknownError) as error:
        log.warning("step_postponed", job_id=job.job_id, kind=effect.kind, attempts=effect.attempts, error=str(error))
        site.ledger.postpone([effect], wait_s(effect.attempts), str(error))
    except PermanentError as error:
        park(site, effect, str(error), error=type(error).__name__, state=job.state, slurm_id=job.slurm_id)
    except Exception as error:  # the edge of a step: whatever it was, the effect is not lost
        if effect.unforeseen + 1 >= TRIES_OF_THE_UNFORESEEN:
            park(site, effect, repr(error), error=type(error).__name__, state=job.state, slurm_id=job.slurm_id)
        else:
            site.ledger.postpone([effect], wait_s(effect.attempts), repr(error), unforeseen=True)
        raise
    else:
        after = site.ledger.record(Change(job.job_id, event, done=effect))[job.job_id]
        log.info("step_done", job_id=job.job_id, kind=effect.kind, state=after.state, slurm_id=after.slurm_id)


def park(site: Site, effect: OpenEffect, reason: str, **seen: object) -> None:
    """Leave an effect to the operator, loudly, with what was seen: words of SLURM, the contract's status."""
    drain.park(site.ledger, effect, reason, **seen)
