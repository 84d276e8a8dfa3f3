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

MAX_CUSTOMERS_IN_ALARM = 5


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
class WaitingJobsLimit:
    """At most `max_jobs` jobs wait. One customer's count as at most `customer_share` of
    them (0 to 1).
    """

    max_jobs: int
    customer_share: float

    def left(self, waiting: Mapping[str, Waits]) -> int:
        """How many more jobs may be claimed."""
        counted = sum(map(self._counted, waiting.values()))
        return max(self.max_jobs - counted, 0)

    def _counted(self, waits: Waits) -> int:
        """As how many waiting jobs a customer's count."""
        return min(waits.turn, max(int(self.max_jobs * self.customer_share), 1))

    def largest_customers(self, waiting: Mapping[str, Waits]) -> dict[str, str]:
        """The customers whose jobs count most, in words; of those with the same count,
        the ones with the most jobs.
        """
        most_first = sorted(
            waiting.items(),
            key=lambda one: (-self._counted(one[1]), -one[1].turn - one[1].held),
        )
        return {
            customer: f"{waits.turn} wait, {waits.held} are held"
            for customer, waits in most_first[:MAX_CUSTOMERS_IN_ALARM]
        }
