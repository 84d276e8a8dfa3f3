"""A group of effects of one kind that are carried out together, and the answer for
each.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.events import Event
from supervisor_tasks.jobs.model import Address, Job, JobId
from supervisor_tasks.jobs.per_job_results import result_or_error
from supervisor_tasks.ledger.outbox import OpenEffect

Members = Sequence[tuple[Job, OpenEffect]]


class CommandFullError(TransientError):
    """The group's command takes no further script, or has no time left for one. A
    retry helps at once.
    """

    def __init__(self) -> None:
        super().__init__("the jobs before this one filled the command")


@dataclass(frozen=True, slots=True)
class EffectOutcome:
    """The answer for an effect. Without an error, the event ends the effect. With an
    error, the effect is tried again or parked; an event beside the error is recorded
    all the same.
    """

    effect: OpenEffect
    event: Event | None = None
    error: Exception | None = None


def outcome_of(effect: OpenEffect, work: Callable[[], Event]) -> EffectOutcome:
    """Carry out the work for one effect of a group, and return its answer: the event,
    or the exception of the work.
    """
    result = result_or_error(work)
    if isinstance(result, Exception):
        return EffectOutcome(effect, error=result)
    return EffectOutcome(effect, result)


@dataclass(slots=True)
class Start:
    """Events, one for each effect, that are committed in one transaction before a group
    goes on. `committed` gets the jobs as they are then, or LedgerUnavailableError (a
    retry helps). Effects that this worker no longer holds are left out, and are
    answered with the loss.
    """

    events: Mapping[OpenEffect, Event]
    committed: "Future[Mapping[JobId, Job]]" = field(default_factory=Future)

    def fail(self, error: Exception) -> None:
        """Let the group that waits know that nothing was committed, unless it knows
        that something was.
        """
        if not self.committed.done():
            self.committed.set_exception(error)


@dataclass(frozen=True, slots=True)
class Group:
    """Effects that this worker holds, with their jobs. A group of submissions is of one
    customer.

    `record` takes the answer for an effect as soon as it is known, from any thread; the
    first answer counts. It takes a start, too: the group waits for its commit.
    """

    context: WorkerContext
    members: Members
    record: Callable[[EffectOutcome | Start], None]

    @property
    def customer(self) -> Address:
        """The customer of the first job."""
        return self.members[0][0].customer

    def fail(self, error: Exception, members: Members | None = None) -> None:
        """Answer these members, or all of the group, with the error. Members that have
        an answer keep it.
        """
        if members is None:
            members = self.members
        for _, effect in members:
            self.record(EffectOutcome(effect, error=error))
