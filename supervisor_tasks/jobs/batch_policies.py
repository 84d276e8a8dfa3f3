"""Which function carries out which kind of effect, and how many at once."""

from collections.abc import Callable
from dataclasses import dataclass

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.cancel import cancel
from supervisor_tasks.jobs.effect_group import EffectOutcome, Group
from supervisor_tasks.jobs.events import Event
from supervisor_tasks.jobs.extend_time_limit import extend_time_limit
from supervisor_tasks.jobs.fetch_script import fetch
from supervisor_tasks.jobs.model import EffectKind, Job
from supervisor_tasks.jobs.notify_customer import notify_customer
from supervisor_tasks.jobs.submit import submit
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.outbox import OpenEffect

# submissions of one customer in one command, or in two if SLURM may have some of the jobs:
# those of a command share the time in which sbatch may begin
GROUP_JOBS = 20

# leases the due effects of so many groups at most
LeaseDue = Callable[[Ledger, int], list[OpenEffect]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPolicy:
    """How a process carries out effects of a kind. `parallel` groups are carried out at
    the same time, with at most `group_size` effects each. `queued` more groups are
    leased, so that no thread is idle until the next commit.
    """

    handler: Callable[[Group], None]
    lease_due: LeaseDue
    parallel: int
    queued: int = 0
    group_size: int = 1

    @property
    def max_groups(self) -> int:
        """The most groups that are leased at the same time."""
        return self.parallel + self.queued


def _due(kind: EffectKind) -> LeaseDue:
    return lambda ledger, groups: ledger.effects.lease([kind], groups)


def _due_by_customer(ledger: Ledger, groups: int) -> list[OpenEffect]:
    return ledger.effects.lease_groups(groups, GROUP_JOBS)


def one_by_one(
    work: Callable[[WorkerContext, Job, OpenEffect], Event],
) -> Callable[[Group], None]:
    """Make a function that carries out the effects of a group one after the other, for
    work that is about one job.
    """

    def handler(group: Group) -> None:
        for job, effect in group.members:
            group.record(EffectOutcome(effect, work(group.context, job, effect)))

    return handler


BATCH_POLICIES = {
    EffectKind.FETCH: BatchPolicy(
        handler=one_by_one(
            lambda context, job, effect: fetch(context, job, effect.attempts)
        ),
        lease_due=_due(EffectKind.FETCH),
        parallel=16,
        queued=48,
    ),
    # Half of these threads serve all customers whose logins are slow (SLOW_COMMANDS in
    # slurm/ssh.py).
    EffectKind.SUBMIT: BatchPolicy(
        handler=submit, lease_due=_due_by_customer, parallel=16, group_size=GROUP_JOBS
    ),
    EffectKind.CANCEL: BatchPolicy(
        handler=one_by_one(lambda context, job, _: cancel(context, job)),
        lease_due=lambda ledger, groups: ledger.effects.lease_cancellations(groups),
        parallel=4,
        queued=12,
    ),
    EffectKind.TOP_UP: BatchPolicy(
        handler=one_by_one(lambda context, job, _: extend_time_limit(context, job)),
        lease_due=_due(EffectKind.TOP_UP),
        parallel=4,
        queued=12,
    ),
    EffectKind.NOTIFY_CUSTOMER: BatchPolicy(
        handler=one_by_one(lambda context, job, _: notify_customer(context, job)),
        lease_due=_due(EffectKind.NOTIFY_CUSTOMER),
        parallel=8,
        queued=24,
    ),
}
