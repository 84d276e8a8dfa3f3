"""How much room there is for waiting jobs, when customers share it. Pure.

claimNextJob gives the next job, and the provider cannot choose which. So the waiting
jobs of one customer count as at most his share of the room, and the rest of the room
stays open for the next jobs. Jobs that wait until a person changes them (held, a
dependency that failed ...; `is_held` in jobs/stalled.py) take nothing from the cluster
and do not count.

The jobs above a customer's share, and the jobs that he holds, have only one bound: the
credits that each of them locks on the chain. There is no bound on all jobs together,
because one customer alone could reach it, and so stop the claims for all.
"""

from collections.abc import Mapping
from dataclasses import dataclass

SHOWN_CUSTOMERS = 5  # in an alarm


@dataclass(frozen=True, slots=True)
class Waits:
    """The waiting jobs of one customer: `turn` wait for their turn, `held` are held."""

    turn: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """Room for `places` waiting jobs. One customer takes at most `share` of it (0 to
    1).
    """

    places: int
    share: float

    def left(self, waiting: Mapping[str, Waits]) -> int:
        """How many more jobs may be claimed."""
        places_of_one = max(int(self.places * self.share), 1)
        taken = sum(min(waits.turn, places_of_one) for waits in waiting.values())
        return max(self.places - taken, 0)

    def largest_customers(self, waiting: Mapping[str, Waits]) -> dict[str, str]:
        """The customers with the most waiting jobs, in words."""
        most_first = sorted(
            waiting.items(), key=lambda one: -(one[1].turn + one[1].held)
        )
        return {
            customer: f"{waits.turn} wait, {waits.held} are held"
            for customer, waits in most_first[:SHOWN_CUSTOMERS]
        }
