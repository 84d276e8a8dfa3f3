"""Work that takes all that is due in one batch, and that only one worker does at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from supervisor_tasks.errors import TransientError
from supervisor_tasks.journey.waiting import wait_s
from supervisor_tasks.ledger.effects import PARKED_AFTER, OpenEffect
from supervisor_tasks.ledger.leases import single_flight
from supervisor_tasks.ledger.operator import AlarmName, finished_tick
from supervisor_tasks.ledger.store import Ledger
from supervisor_tasks.slurm.homes import UNSAFE

log = structlog.get_logger()


def drain(ledger: Ledger, name: str, work: Callable[[], bool], *, takes_long: bool = False) -> None:
    """Do `work` until it says that nothing is left, unless another worker is at it. A wake-up that comes to nothing because the
    other one had looked for the last time, and still had the guard, is made up for by `nudge` or by beat: what is left to do is
    written down. Who did it leaves a tick; of what takes long, who finds another one at it, too.
    """
    left = True
    while left:
        ledger.holder.number()  # who stands still with the guard is ended as a holder
        with single_flight(ledger.engine, f"{ledger.cluster} {name}") as mine:
            if not mine:
                if takes_long:
                    ledger.ticks.leave(finished_tick(name))
                return
            with ticking(ledger, name):
                left = work()


@contextmanager
def ticking(ledger: Ledger, name: str) -> Iterator[None]:
    """Periodic work leaves two ticks: that it came to an end, which tells that this program progresses, and that it
    succeeded, which tells that the others answer too.
    """
    try:
        yield
    except TransientError:
        ledger.ticks.leave(finished_tick(name))
        raise
    ledger.ticks.leave(finished_tick(name), name)


@contextmanager
def given_back_on_failure(ledger: Ledger, effects: Sequence[OpenEffect]) -> Iterator[None]:
    """Whatever goes wrong with a batch, its effects are soon due again. Somebody who does not answer is worth a warning;
    what nobody foresaw is raised. An effect that fails so again and again is taken alone, and parked.
    """
    again_s = wait_s(max(effect.attempts for effect in effects))
    try:
        yield
    except TransientError as error:
        ledger.effects.postpone(effects, again_s, str(error))
        log.warning("batch_postponed", jobs=len(effects), error=str(error))
    except Exception as error:
        give_back_unforeseen(ledger, effects, error)
        raise
    except BaseException as error:  # the worker is told to end: nobody's failure
        ledger.effects.postpone(effects, again_s, repr(error))
        raise


def give_back_unforeseen(ledger: Ledger, effects: Sequence[OpenEffect], error: Exception, **seen: object) -> None:
    """What was not foreseen: the effects are soon due again, and one that failed so for the third time, alone, is parked."""
    if len(effects) == 1 and effects[0].unforeseen + 1 >= PARKED_AFTER:
        park(ledger, effects[0], repr(error), error=type(error).__name__, **seen)
    else:
        again_s = wait_s(max(effect.attempts for effect in effects))
        ledger.effects.postpone(effects, again_s, repr(error), unforeseen=True)


def park(ledger: Ledger, effect: OpenEffect, reason: str, **seen: object) -> None:
    """Leave an effect to the operator, loudly, with what was seen."""
    parked = ledger.effects.park(effect, reason, {"reason": reason, **seen})
    about = {"job_id": effect.job_id, "kind": effect.kind, "attempts": effect.attempts, "reason": reason}
    if not parked:
        log.warning("effect_tried_once_more", **about)
        return
    log.error("effect_parked", **about)
    watch_effects(ledger)


def watch_effects(ledger: Ledger) -> None:
    """The operator is called for effects that are parked, and for those that have failed for long; not any more once
    there are none. What is late is still tried: an outage settles nothing.
    """
    trouble = ledger.effects.trouble()
    if trouble.parked:
        ledger.alarms.on(AlarmName.EFFECT_PARKED, effects=trouble.parked, advice="supervisor parked")
    else:
        ledger.alarms.off(AlarmName.EFFECT_PARKED)
    if trouble.late:
        ledger.alarms.on(
            AlarmName.EFFECT_LATE,
            effects=trouble.late,
            tries=trouble.most_tries,
            for_s=round(trouble.longest_s),
            last_error=trouble.last_error,
        )
    else:
        ledger.alarms.off(AlarmName.EFFECT_LATE)
    _watch_homes(ledger)


def _watch_homes(ledger: Ledger) -> None:
    waiting, homes = ledger.effects.failing_with(UNSAFE)
    if waiting:
        ledger.alarms.on(AlarmName.HOME_UNSAFE, effects=waiting, homes=homes)
    else:
        ledger.alarms.off(AlarmName.HOME_UNSAFE)
