"""The Celery tasks: a name, a queue, and one call each."""

from typing import Any

import structlog
from celery import Task, shared_task
from celery.signals import beat_init, setup_logging, worker_init, worker_ready, worker_shutdown, worker_shutting_down

from supervisor_tasks.errors import TransientError
from supervisor_tasks.job import Kind
from supervisor_tasks.monitoring.probes import end_in_peace, serve_beat, serve_worker
from supervisor_tasks.running import current_site, set_up_logging, start_ear, start_site, stop_site

log = structlog.get_logger()


class SupervisorTask(Task):  # type: ignore[misc]  # Celery has no types
    """The edge of all work: logs know the task; a part that does not answer is no traceback."""

    throws = (TransientError,)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run the task with its name in the log's context."""
        with structlog.contextvars.bound_contextvars(task=self.name.rpartition(".")[2]):
            try:
                current_site().begin()
                self.run(*args, **kwargs)
            except TransientError as error:
                log.warning("task_not_answered", error=str(error))  # the clock sends it again
                raise


@shared_task(base=SupervisorTask)
def claim() -> None:
    """Claim what the contract has for us."""
    current_site().claim()


@shared_task(base=SupervisorTask)
def scan() -> None:
    """Read the chain's logs from the cursor on."""
    current_site().scan()


@shared_task(base=SupervisorTask)
def accounts() -> None:
    """Make the accounts of customers who have none."""
    current_site().accounts()


@shared_task(base=SupervisorTask)
def fetch() -> None:
    """Fetch the scripts of claimed jobs."""
    current_site().carry_out(Kind.FETCH)


@shared_task(base=SupervisorTask)
def submit() -> None:
    """Submit jobs to SLURM, or find out whether they were."""
    current_site().carry_out(Kind.SUBMIT)


@shared_task(base=SupervisorTask)
def cancel() -> None:
    """Cancel jobs in SLURM."""
    current_site().carry_out(Kind.CANCEL)


@shared_task(base=SupervisorTask)
def top_up() -> None:
    """Give jobs their new time limits."""
    current_site().carry_out(Kind.TOP_UP)


@shared_task(base=SupervisorTask)
def tell_user() -> None:
    """Tell the owners of jobs why."""
    current_site().carry_out(Kind.TELL_USER)


@shared_task(base=SupervisorTask)
def witness() -> None:
    """Read the inbox and look at the jobs that are due."""
    current_site().witness()


@shared_task(base=SupervisorTask)
def report() -> None:
    """Write to the contract what is true of the jobs."""
    current_site().report()


@shared_task(base=SupervisorTask)
def track() -> None:
    """Follow the open transactions."""
    current_site().track()


@shared_task(base=SupervisorTask)
def register() -> None:
    """Have the contract know what is offered."""
    current_site().register()


@shared_task(base=SupervisorTask)
def look_at_nodes() -> None:
    """Write down what hardware the partition has."""
    current_site().look_at_nodes()


@shared_task(base=SupervisorTask)
def check_slurm() -> None:
    """See whether SLURM answers; without that nothing is claimed, registered or measured."""
    current_site().check_slurm()


@shared_task(base=SupervisorTask)
def benchmark() -> None:
    """Bring the benchmark run that is under way, if there is one, as far as it goes now."""
    current_site().benchmark()


@shared_task(base=SupervisorTask)
def sweep(why: str = "") -> None:
    """Compare ledger, contract and SLURM: with a reason at once, else when it is due."""
    current_site().sweep(why)


@shared_task(base=SupervisorTask)
def nudge() -> None:
    """Wake what was forgotten."""
    current_site().nudge()


@shared_task(base=SupervisorTask)
def watch() -> None:
    """Call the operator for what does not go on by itself."""
    current_site().watch()


setup_logging.connect(set_up_logging, weak=False)
worker_init.connect(start_site, weak=False)
worker_init.connect(serve_worker, weak=False)
worker_shutting_down.connect(end_in_peace, weak=False)
beat_init.connect(serve_beat, weak=False)


def _hurry(**_: object) -> None:
    """What does not wait for the clock when a worker starts."""
    current_site().hurry()


worker_ready.connect(_hurry, weak=False)
worker_ready.connect(start_ear, weak=False)
worker_shutdown.connect(stop_site, weak=False)
