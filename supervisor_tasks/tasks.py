"""The Celery tasks: a name, a queue, and one call each. Only workers import this
module; the others send by name.
"""

from typing import Any

import structlog
from celery import Task, shared_task

from supervisor_tasks.accounts import sync
from supervisor_tasks.benchmarking import runner
from supervisor_tasks.errors import TransientError
from supervisor_tasks.indexer import scan as logs
from supervisor_tasks.jobs import claim as claiming
from supervisor_tasks.jobs import dispatch, monitor
from supervisor_tasks.jobs import report as reporting
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.jobs.task_summary import MAX_CHARACTERS, summary
from supervisor_tasks.ledger.changed_jobs import collecting
from supervisor_tasks.lifecycle import goes_on
from supervisor_tasks.monitoring import slurm_health, standing_work
from supervisor_tasks.notifications import deliver
from supervisor_tasks.provider import inventory
from supervisor_tasks.provider import register as registration
from supervisor_tasks.reconciliation import run as reconciliation
from supervisor_tasks.recovery import old_rows
from supervisor_tasks.wallet import receipts
from supervisor_tasks.worker import current_context, current_worker

log = structlog.get_logger()


class SupervisorTask(Task):  # type: ignore[misc]  # Celery has no types
    """The base of all tasks: adds the task's name to the logs, and logs a
    TransientError without a traceback.

    The result is for Flower: what the task did to jobs. No result is stored.
    """

    throws = (TransientError,)
    resultrepr_maxsize = MAX_CHARACTERS

    def __call__(self, *args: Any, **kwargs: Any) -> str | None:
        """Run the task with its name in the log's context."""
        with (
            structlog.contextvars.bound_contextvars(task=self.name.rpartition(".")[2]),
            collecting() as changed,
        ):
            try:
                current_worker().begin()
                self.run(*args, **kwargs)
                return summary(changed.values())
            except TransientError as error:
                # beat sends the task again
                log.warning("task_failed_transient", error=str(error))
                raise


@shared_task(base=SupervisorTask)
def claim() -> None:
    """Claim the jobs that the contract has for us."""
    claiming.claim(current_context())


@shared_task(base=SupervisorTask)
def scan() -> None:
    """Read the chain's logs from the cursor."""
    logs.scan(current_context())


@shared_task(base=SupervisorTask)
def accounts() -> None:
    """Make accounts for customers without one."""
    sync.make_accounts(current_context())


@shared_task(base=SupervisorTask)
def fetch() -> None:
    """Fetch the scripts of claimed jobs."""
    current_worker().batches[EffectKind.FETCH].run(goes_on)


@shared_task(base=SupervisorTask)
def submit() -> None:
    """Submit jobs to SLURM, or find out whether an earlier submission succeeded."""
    current_worker().batches[EffectKind.SUBMIT].run(goes_on)


@shared_task(base=SupervisorTask)
def cancel() -> None:
    """Cancel jobs in SLURM."""
    current_worker().batches[EffectKind.CANCEL].run(goes_on)


@shared_task(base=SupervisorTask)
def top_up() -> None:
    """Set the new time limits of topped-up jobs in SLURM."""
    current_worker().batches[EffectKind.TOP_UP].run(goes_on)


@shared_task(base=SupervisorTask)
def notify_customer() -> None:
    """Send customers the messages about their jobs."""
    current_worker().batches[EffectKind.NOTIFY_CUSTOMER].run(goes_on)


@shared_task(base=SupervisorTask)
def poll_jobs() -> None:
    """Read the inbox and look at the jobs that are due."""
    monitor.poll_jobs(current_context())


@shared_task(base=SupervisorTask)
def report() -> None:
    """Report the jobs' states to the contract."""
    reporting.report(current_context())


@shared_task(base=SupervisorTask)
def collect_receipts() -> None:
    """Follow the open transactions."""
    receipts.collect_receipts(current_context())


@shared_task(base=SupervisorTask)
def register() -> None:
    """Register our offer with the contract."""
    registration.register(current_context())


@shared_task(base=SupervisorTask)
def refresh_inventory() -> None:
    """Store the partition's hardware in the ledger."""
    inventory.refresh_inventory(current_context())


@shared_task(base=SupervisorTask)
def check_slurm() -> None:
    """Check whether SLURM answers; while it does not, the fleet claims, registers and
    measures nothing.
    """
    slurm_health.check_slurm(current_context())


@shared_task(base=SupervisorTask)
def benchmark() -> None:
    """Advance the benchmark run that is under way, if there is one, as far as it can go
    now.
    """
    runner.benchmark(current_context())


@shared_task(base=SupervisorTask)
def sweep(why: str = "") -> None:
    """Compare ledger, contract and SLURM: at once with a reason `why`, otherwise only
    if a sweep is due.
    """
    reconciliation.sweep(current_context(), why)


@shared_task(base=SupervisorTask)
def retention() -> None:
    """Delete old rows, in small batches and for a limited time."""
    old_rows.delete_old_rows(current_context(), goes_on)


@shared_task(base=SupervisorTask)
def dispatch_due_effects() -> None:
    """Send messages again for effects that are due and have none."""
    dispatch.dispatch_due_effects(current_context())


@shared_task(base=SupervisorTask)
def check_alarms() -> None:
    """Call the operator for work that does not continue by itself."""
    standing_work.check_alarms(current_context())


@shared_task(base=SupervisorTask)
def notify() -> None:
    """Send the messages about alarms that are due."""
    context = current_context()
    deliver.notify(context.ledger, context.notifier)
