"""Work that takes all that is due in one batch, and that only one worker does at a time."""

from collections.abc import Callable

from sqlalchemy import Engine

from supervisor_tasks.ledger.leases import single_flight


def drain(engine: Engine, name: str, work: Callable[[], bool]) -> None:
    """Do `work` until it says that nothing is left, unless another worker is at it. A wake-up that comes while the other
    one finishes is not lost: `work` looks once more after the guard was given back.
    """
    while True:
        with single_flight(engine, name) as mine:
            if not mine or not work():
                return
