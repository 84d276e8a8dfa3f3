"""Work that takes all that is due in one batch, and that only one worker does at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog
from sqlalchemy import Engine

from supervisor_tasks.errors import TransientError
from supervisor_tasks.journey.waiting import wait_s
from supervisor_tasks.ledger.leases import single_flight
from supervisor_tasks.ledger.store import Ledger, OpenEffect

log = structlog.get_logger()


def drain(engine: Engine, name: str, work: Callable[[], bool]) -> None:
    """Do `work` until it says that nothing is left, unless another worker is at it. A wake-up that comes while the other
    one finishes is not lost: `work` looks once more after the guard was given back.
    """
    while True:
        with single_flight(engine, name) as mine:
            if not mine or not work():
                return


@contextmanager
def given_back_on_failure(ledger: Ledger, effects: Sequence[OpenEffect]) -> Iterator[None]:
    """Whatever goes wrong with a batch, its effects are soon due again. Somebody who does not answer is worth a warning;
    what nobody foresaw is raised.
    """
    try:
        yield
    except BaseException as error:
        ledger.postpone(effects, wait_s(max(effect.attempts for effect in effects)), repr(error))
        if not isinstance(error, TransientError):
            raise
        log.warning("batch_postponed", jobs=len(effects), error=str(error))
