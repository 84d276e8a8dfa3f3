"""How much room there is for jobs that wait, when customers share it. Pure.

claimNextJob gives the next job, and the provider cannot choose which. So what one customer has waiting counts as
his share of the room at most, and the room of the others is open to the next jobs. Jobs that wait until a person changes
them (held, a dependency that failed ...) take nothing from the cluster and count as nothing. What is over a customer's share,
and what he holds, has one bound: the credits that each of these jobs locks on the chain. One customer could reach any other
bound of all jobs together alone, and so stop the claims of all.
"""

from collections.abc import Mapping
from dataclasses import dataclass

SHOWN_CUSTOMERS = 5  # in an alarm


@dataclass(frozen=True, slots=True)
class Waits:
    """Of one customer: jobs that wait their turn, and jobs that are held."""

    turn: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """Room for so many jobs that wait, of which one customer takes so much at most (0 to 1)."""

    places: int
    share: float

    def left(self, waiting: Mapping[str, Waits]) -> int:
        """How many more jobs may be claimed."""
        of_one = max(int(self.places * self.share), 1)
        taken = sum(min(waits.turn, of_one) for waits in waiting.values())
        return max(self.places - taken, 0)

    def told(self, waiting: Mapping[str, Waits]) -> dict[str, str]:
        """Who takes the most, in words."""
        first = sorted(waiting.items(), key=lambda one: -(one[1].turn + one[1].held))[:SHOWN_CUSTOMERS]
        return {customer: f"{waits.turn} wait, {waits.held} are held" for customer, waits in first}
