"""Whether the supervisor is alive. Liveness is progress: a worker can answer pings and consume nothing. Pure.

Periodic work leaves a tick whenever it comes to an end, also when SLURM or the chain did not answer: that others are away is an
alarm and no illness of ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from supervisor_tasks.ledger.operator import finished_tick
from supervisor_tasks.ledger.tellers import CALLBACKS
from supervisor_tasks.queues import QUEUE_OF_TASK, Queue

MISSED = 10  # so many intervals without a tick are an illness
LEAST_S = 30.0  # a worker that starts anew is none
OVERDUE_S = 60.0  # nothing that is due waits so long while somebody works


@dataclass(frozen=True, slots=True)
class Periodic:
    """Work that beat asks for."""

    name: str
    every_s: float

    @property
    def queue(self) -> Queue:
        """Whose workers do it."""
        return QUEUE_OF_TASK[self.name]

    @property
    def patience_s(self) -> float:
        """How old its last tick may be."""
        return max(MISSED * self.every_s, LEAST_S)


def complaints(periodic: list[Periodic], ticks_s: Mapping[str, float], oldest_due_s: float) -> list[str]:
    """What is wrong, a line each: what was found, what was expected, what to do. Nothing when all is well."""
    stale = [work for work in periodic if ticks_s.get(finished_tick(work.name), float("inf")) > work.patience_s]
    if periodic and len(stale) == len(periodic):
        return [
            f"nothing periodic comes to an end ({_ages(stale, ticks_s)}): see whether beat, the broker and workers run"
        ]
    found = [
        f"{work.name}: {_age(work, ticks_s)}, expected one every {work.every_s:g} s: see the workers of the queue"
        f" {work.queue.value}"
        for work in stale
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
    age_s = ticks_s.get(finished_tick(work.name))
    return "never ended" if age_s is None else f"last ended {age_s:.0f} s ago"
