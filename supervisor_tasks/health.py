"""Whether the supervisor is alive. Liveness is progress: a worker can answer pings and consume nothing.

Work that ends again and again leaves a tick, also when SLURM or the chain did not answer: that others are away is an alarm and
no illness of ours. Each queue has some that is due even where nothing happens.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from supervisor_tasks.ledger.due import CLOCK, CLOCK_TICK_EVERY_S
from supervisor_tasks.ledger.operator import finished_tick
from supervisor_tasks.ledger.tellers import CALLBACKS
from supervisor_tasks.messaging.due_rules import RULES
from supervisor_tasks.queues import QUEUE_OF_TASK

MISSED = 3  # so many intervals without a tick are an illness
LEAST_S = 30.0  # a process that starts anew is none
OVERDUE_S = 60.0  # nothing that is due waits so long while a worker takes it
LOOKED_EVERY_S = 15.0  # at the chain, at least (indexer/new_blocks.py)


@dataclass(frozen=True, slots=True)
class Periodic:
    """Work that ends once in `every_s` at least, in a fleet that is alive; it leaves the tick of that name."""

    name: str
    every_s: float
    tick: str
    part: str  # of the fleet, which does it

    @property
    def patience_s(self) -> float:
        """How old its last tick may be."""
        return max(MISSED * self.every_s, LEAST_S)


def periodic_work(chain_poll_s: float, *, accounts: bool) -> list[Periodic]:
    """What ends again and again in a fleet that is alive; accounts only where there is a directory."""
    found = [
        Periodic("clock", CLOCK_TICK_EVERY_S, CLOCK, "beat"),
        _of_queue("claim", max(chain_poll_s, LOOKED_EVERY_S)),
    ]
    idle = {name: rule.idle_s for name, rule in RULES.items() if name != "accounts" or accounts}
    return found + [_of_queue(name, every_s) for name, every_s in idle.items() if every_s is not None]


def _of_queue(name: str, every_s: float) -> Periodic:
    return Periodic(name, every_s, finished_tick(name), f"the workers of the queue {QUEUE_OF_TASK[name].value}")


def complaints(periodic: list[Periodic], ticks_s: Mapping[str, float], oldest_due_s: float) -> list[str]:
    """What is wrong, a line each: what was found, what was expected, what to do. Nothing when all is well."""
    stale = [work for work in periodic if ticks_s.get(work.tick, float("inf")) > work.patience_s]
    if periodic and len(stale) == len(periodic):
        return [
            f"nothing periodic comes to an end ({_ages(stale, ticks_s)}): see whether beat, the broker and workers run"
        ]
    found = [
        f"{work.name}: {_age(work, ticks_s)}, expected one every {work.every_s:g} s: see {work.part}" for work in stale
    ]
    if ticks_s.get(CALLBACKS, float("inf")) > LEAST_S:
        found.append("the gRPC process is not heard, and so no callback is taken: see whether it runs, and its log")
    if oldest_due_s > OVERDUE_S:
        found.append(
            f"an effect has been due for {oldest_due_s:.0f} s, expected at most {OVERDUE_S:g} s: no worker takes it"
        )
    return found


def _ages(stale: list[Periodic], ticks_s: Mapping[str, float]) -> str:
    return "; ".join(f"{work.name}: {_age(work, ticks_s)}" for work in stale)


def _age(work: Periodic, ticks_s: Mapping[str, float]) -> str:
    age_s = ticks_s.get(work.tick)
    return "never ended" if age_s is None else f"last ended {age_s:.0f} s ago"
