"""A group of effects of one kind that are carried out together, and what came of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from supervisor_tasks.events import Event
from supervisor_tasks.job import Address, Job, JobId
from supervisor_tasks.ledger.effects import OpenEffect
from supervisor_tasks.site import Site


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an effect: an event, which ends it; or an error, for which it is tried again or parked, and with it what is
    true of the job all the same.
    """

    effect: OpenEffect
    event: Event | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Effects that this worker holds, with their jobs; submissions are of one customer. `answered` is told what came of each as
    soon as that is known, by any thread; the first word counts. `start` commits an event of each in one transaction, of those
    that are still held, and returns their jobs as they are then; the others are answered. Raises LedgerUnavailableError.
    """

    site: Site
    members: Sequence[tuple[Job, OpenEffect]]
    start: Callable[[Mapping[OpenEffect, Event]], Mapping[JobId, Job]]
    answered: Callable[[Outcome], None]

    @property
    def customer(self) -> Address:
        """The customer of the first job."""
        return self.members[0][0].customer

    def failed(self, error: Exception, members: Sequence[tuple[Job, OpenEffect]] | None = None) -> None:
        """Answer all of these, or of the group, that have no answer yet."""
        for _, effect in self.members if members is None else members:
            self.answered(Outcome(effect, error=error))


def one_by_one(work: Callable[[Site, Job, OpenEffect], Event]) -> Callable[[Group], None]:
    """Carry out a group of an effect whose work is about one job."""

    def carry_out(group: Group) -> None:
        for job, effect in group.members:
            group.answered(Outcome(effect, work(group.site, job, effect)))

    return carry_out
