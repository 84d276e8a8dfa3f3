"""Steps: one effect of one job each, carried out side by side."""

import time
from collections.abc import Callable
from contextlib import nullcontext

import structlog

from supervisor_tasks.crash import Point, around
from supervisor_tasks.errors import OutcomeUnknownError, PermanentError, TransientError
from supervisor_tasks.events import Event, SubmitNotFound, SubmitRejected, Submitted, SubmitUnclear
from supervisor_tasks.job import Address, Job, Kind
from supervisor_tasks.jobs.cancel import cancel
from supervisor_tasks.jobs.extend_time_limit import top_up
from supervisor_tasks.jobs.fetch_script import fetch
from supervisor_tasks.jobs.notify_customer import tell_user
from supervisor_tasks.jobs.submit import submit
from supervisor_tasks.journey import drain
from supervisor_tasks.journey.waiting import wait_s
from supervisor_tasks.ledger.effects import LeaseLostError, OpenEffect
from supervisor_tasks.ledger.store import Change
from supervisor_tasks.site import Site
from supervisor_tasks.slurm.ssh import SshSilentError

log = structlog.get_logger()

STEPS: dict[Kind, Callable[[Site, Job, OpenEffect], Event]] = {
    Kind.FETCH: lambda site, job, effect: fetch(site, job, effect.attempts),
    Kind.SUBMIT: submit,
    Kind.CANCEL: lambda site, job, _: cancel(site, job),
    Kind.TOP_UP: lambda site, job, _: top_up(site, job),
    Kind.TELL_USER: lambda site, job, _: tell_user(site, job),
}
# What is true only of the moment: it counts if the effect is still ours. What was learnt for good, such as an id, always does.
OF_THE_MOMENT = (SubmitNotFound, SubmitRejected, SubmitUnclear)
A_TURN_S = 5.0  # a thread goes on with one customer for so long; then the customers whose messages wait come first


def carry_out_in_turn(
    site: Site, effect_id: int, goes_on: Callable[[], bool], clock_s: Callable[[], float] = time.monotonic
) -> None:
    """Carry out one effect. A submission is followed by those of its customer that were refused their turn, as no message is
    under way for them; for as long as the worker `goes_on`. After A_TURN_S the next one gets a message instead.
    """
    begun_s = clock_s()
    customer = carry_out(site, effect_id)
    while customer is not None and goes_on():
        if clock_s() - begun_s > A_TURN_S:
            site.ledger.effects.wake_next(customer)
            return
        following = site.ledger.effects.lease_next(customer)
        customer = carry_out_leased(site, following[0]) if following else None


def carry_out(site: Site, effect_id: int) -> Address | None:
    """Carry out one effect and commit its outcome; returns the customer of a submission. What fails because somebody does not
    answer is tried again until it is answered; what was answered with no, or fails in a way that nobody foresaw, is parked
    with its reason.
    """
    leased = site.ledger.effects.lease(STEPS, effect_id)
    return carry_out_leased(site, leased[0]) if leased else None


def carry_out_leased(site: Site, effect: OpenEffect) -> Address | None:
    """As `carry_out`, of an effect that this worker holds already."""
    seen, customer = dict[str, object](), None
    try:
        job = site.ledger.jobs([effect.job_id])[effect.job_id]
        seen = {"state": job.state, "slurm_id": job.slurm_id}
        customer = job.customer if effect.kind is Kind.SUBMIT else None
        _conclude(site, effect, STEPS[effect.kind](site, job, effect))
    except LeaseLostError as error:
        log.warning("step_taken_over", job_id=effect.job_id, kind=effect.kind, error=str(error))
    except SshSilentError as error:
        log.warning("login_is_silent", job_id=effect.job_id, customer=customer, error=str(error))
        site.ledger.effects.postpone([effect], error.again_in_s, str(error))
        if customer is not None:
            site.ledger.effects.put_off(customer, error.again_in_s)
    except (TransientError, OutcomeUnknownError) as error:
        log.warning(
            "step_postponed", job_id=effect.job_id, kind=effect.kind, attempts=effect.attempts, error=str(error)
        )
        site.ledger.effects.postpone([effect], wait_s(effect.attempts), str(error))
    except PermanentError as error:
        park(site, effect, str(error), error=type(error).__name__, **seen)
    except Exception as error:  # the edge of a step: whatever it was, the effect is not lost
        drain.give_back_unforeseen(site.ledger, [effect], error, **seen)
        raise
    return customer


def _conclude(site: Site, effect: OpenEffect, event: Event) -> None:
    held = effect if isinstance(event, OF_THE_MOMENT) else None
    change = Change(effect.job_id, event, done=effect, in_vain=_in_vain(event))
    with around(Point.ID_STORED) if isinstance(event, Submitted) else nullcontext():
        after = site.ledger.record(change, held=held)[effect.job_id]
    log.info("step_done", job_id=effect.job_id, kind=effect.kind, state=after.state, slurm_id=after.slurm_id)


def _in_vain(event: Event) -> str | None:
    """A submission that is cut off, looked for and made again goes in a circle: the operator hears of it as of any other
    failure that lasts.
    """
    if isinstance(event, SubmitUnclear):
        return event.reason
    return "its submission was cut off, and SLURM has nothing of it" if isinstance(event, SubmitNotFound) else None


def park(site: Site, effect: OpenEffect, reason: str, **seen: object) -> None:
    """Leave an effect to the operator, loudly, with what was seen: words of SLURM, the contract's status."""
    drain.park(site.ledger, effect, reason, **seen)
