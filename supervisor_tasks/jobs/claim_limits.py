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
class ClaimLook:
    """What a look at the contract found. `waiting`: it has something for us.
    `claimable`: the task has a claim to write. `why_not`: why no job may be claimed;
    empty if one may, or if none waits.
    """

    waiting: bool
    claimable: bool
    why_not: str


@dataclass(frozen=True, slots=True)
class Waits:
    """The waiting jobs of one customer: `turn` wait for their turn, `held` are held."""

    turn: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True)
class ClaimCapacity:
    """Room for `places` waiting jobs. One customer takes at most `share` of it (0 to
    1).
    """

    places: int
    share: float

    def left(self, waiting: Mapping[str, Waits]) -> int:
        """How many more jobs may be claimed."""
        taken = sum(map(self._places_of, waiting.values()))
        return max(self.places - taken, 0)

    def _places_of(self, waits: Waits) -> int:
        """The places that a customer takes."""
        return min(waits.turn, max(int(self.places * self.share), 1))

    def largest_customers(self, waiting: Mapping[str, Waits]) -> dict[str, str]:
        """The customers that take the most places, in words; of those that take the
        same, the ones with the most jobs.
        """
        most_first = sorted(
            waiting.items(),
            key=lambda one: (-self._places_of(one[1]), -one[1].turn - one[1].held),
        )
        return {
            customer: f"{waits.turn} wait, {waits.held} are held"
            for customer, waits in most_first[:SHOWN_CUSTOMERS]
        }
