"""The Celery tasks: a name, a queue, and one call each."""

from typing import Any

import structlog
from celery import Task, shared_task
from celery.signals import beat_init, setup_logging, worker_init, worker_ready, worker_shutdown, worker_shutting_down

from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.monitoring.probes import end_in_peace, serve_beat, serve_worker
from supervisor_tasks.worker import current_context, on_worker_init, on_worker_shutdown, set_up_logging, start_watchdog

log = structlog.get_logger()


class SupervisorTask(Task):  # type: ignore[misc]  # Celery has no types
    """The base of all tasks: adds the task's name to the logs, and logs a TransientError without a traceback."""

    throws = (TransientError,)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run the task with its name in the log's context."""
        with structlog.contextvars.bound_contextvars(task=self.name.rpartition(".")[2]):
            try:
                current_context().begin()
                self.run(*args, **kwargs)
            except TransientError as error:
                log.warning("task_failed_transient", error=str(error))  # beat sends the task again
                raise


@shared_task(base=SupervisorTask)
def claim() -> None:
    """Claim the jobs that the contract has for us."""
    current_context().claim()


@shared_task(base=SupervisorTask)
def scan() -> None:
    """Read the chain's logs from the cursor."""
    current_context().scan()


@shared_task(base=SupervisorTask)
def accounts() -> None:
    """Make accounts for customers without one."""
    current_context().accounts()


@shared_task(base=SupervisorTask)
def fetch() -> None:
    """Fetch the scripts of claimed jobs."""
    current_context().carry_out(EffectKind.FETCH)


@shared_task(base=SupervisorTask)
def submit() -> None:
    """Submit jobs to SLURM, or find out whether an earlier submission succeeded."""
    current_context().carry_out(EffectKind.SUBMIT)


@shared_task(base=SupervisorTask)
def cancel() -> None:
    """Cancel jobs in SLURM."""
    current_context().carry_out(EffectKind.CANCEL)


@shared_task(base=SupervisorTask)
def top_up() -> None:
    """Set the new time limits of topped-up jobs in SLURM."""
    current_context().carry_out(EffectKind.TOP_UP)


@shared_task(base=SupervisorTask)
def notify_customer() -> None:
    """Send customers the messages about their jobs."""
    current_context().carry_out(EffectKind.NOTIFY_CUSTOMER)


@shared_task(base=SupervisorTask)
def poll_jobs() -> None:
    """Read the inbox and look at the jobs that are due."""
    current_context().poll_jobs()


@shared_task(base=SupervisorTask)
def report() -> None:
    """Report the jobs' states to the contract."""
    current_context().report()


@shared_task(base=SupervisorTask)
def collect_receipts() -> None:
    """Follow the open transactions."""
    current_context().collect_receipts()


@shared_task(base=SupervisorTask)
def register() -> None:
    """Register our offer with the contract."""
    current_context().register()


@shared_task(base=SupervisorTask)
def refresh_inventory() -> None:
    """Store the partition's hardware in the ledger."""
    current_context().refresh_inventory()


@shared_task(base=SupervisorTask)
def check_slurm() -> None:
    """Check whether SLURM answers; while it does not, the fleet claims, registers and measures nothing."""
    current_context().check_slurm()


@shared_task(base=SupervisorTask)
def benchmark() -> None:
    """Advance the benchmark run that is under way, if there is one, as far as it can go now."""
    current_context().benchmark()


@shared_task(base=SupervisorTask)
def sweep(why: str = "") -> None:
    """Compare ledger, contract and SLURM: at once with a reason `why`, otherwise only if a sweep is due."""
    current_context().sweep(why)


@shared_task(base=SupervisorTask)
def retention() -> None:
    """Delete old rows, in small batches and for a limited time."""
    current_context().retention()


@shared_task(base=SupervisorTask)
def dispatch_due_effects() -> None:
    """Send messages again for effects that are due and have none."""
    current_context().dispatch_due_effects()


@shared_task(base=SupervisorTask)
def check_alarms() -> None:
    """Call the operator for work that does not continue by itself."""
    current_context().check_alarms()


@shared_task(base=SupervisorTask)
def notify() -> None:
    """Send the messages about alarms that are due."""
    current_context().notify()


setup_logging.connect(set_up_logging, weak=False)
worker_init.connect(on_worker_init, weak=False)
worker_init.connect(serve_worker, weak=False)
worker_shutting_down.connect(end_in_peace, weak=False)
beat_init.connect(serve_beat, weak=False)


def _hurry(**_: object) -> None:
    """Wake the tasks that do not wait for beat when a worker starts."""
    current_context().hurry()


worker_ready.connect(_hurry, weak=False)
worker_ready.connect(start_watchdog, weak=False)
worker_shutdown.connect(on_worker_shutdown, weak=False)
