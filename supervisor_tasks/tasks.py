"""The Celery tasks: a name and the function that it calls. Their queues are in
messaging/queues.py. Only workers import this module; the others send by name.
"""

from collections.abc import Callable
from typing import Any

import structlog
from celery import Task, shared_task

from supervisor_tasks.accounts.sync import make_accounts
from supervisor_tasks.benchmarking.cleanup import cancel_old_benchmarks
from supervisor_tasks.benchmarking.runner import benchmark
from supervisor_tasks.deletion.old_rows import delete_old_rows
from supervisor_tasks.errors import TransientError
from supervisor_tasks.in_memory.changed_jobs import collecting
from supervisor_tasks.indexer.scan import scan
from supervisor_tasks.jobs.claim import claim
from supervisor_tasks.jobs.dispatch import dispatch_due_effects
from supervisor_tasks.jobs.model import EffectKind
from supervisor_tasks.jobs.monitor import poll_jobs
from supervisor_tasks.jobs.report import report
from supervisor_tasks.jobs.task_summary import MAX_CHARACTERS, summary
from supervisor_tasks.lifecycle import goes_on
from supervisor_tasks.messaging import queues
from supervisor_tasks.monitoring.check_alarms import check_alarms
from supervisor_tasks.monitoring.slurm_health import check_slurm
from supervisor_tasks.notifications.deliver import notify
from supervisor_tasks.open_transactions.receipts import collect_receipts
from supervisor_tasks.provider.inventory import refresh_inventory
from supervisor_tasks.provider.register import register
from supervisor_tasks.reconciliation.run import sweep
from supervisor_tasks.worker import current_context, current_worker

log = structlog.get_logger()

Workflow = Callable[..., None]  # takes the context, then the task's arguments

# A batch carries out all due effects of one kind: jobs/batch_policies.py says by which
# function.
WORKFLOWS: dict[str, Workflow] = {
    # the life of a job
    "claim": claim,
    "fetch": lambda _: current_worker().batches[EffectKind.FETCH].run(goes_on),
    "submit": lambda _: current_worker().batches[EffectKind.SUBMIT].run(goes_on),
    "poll_jobs": poll_jobs,
    "top_up": lambda _: current_worker().batches[EffectKind.TOP_UP].run(goes_on),
    "cancel": lambda _: current_worker().batches[EffectKind.CANCEL].run(goes_on),
    "report": report,
    "notify_customer": lambda _: (
        current_worker().batches[EffectKind.NOTIFY_CUSTOMER].run(goes_on)
    ),
    # the chain
    "scan": scan,
    "collect_receipts": collect_receipts,
    # the provider's cluster and its customers
    "accounts": make_accounts,
    "register": register,
    "refresh_inventory": refresh_inventory,
    "check_slurm": lambda context: check_slurm(context, cancel_old_benchmarks),
    "benchmark": benchmark,
    # what holds the ledger right
    "dispatch_due_effects": dispatch_due_effects,
    "sweep": sweep,
    "check_alarms": check_alarms,
    "notify": lambda context: notify(context.ledger, context.notifier),
    "retention": lambda context: delete_old_rows(context, goes_on),
}


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


def _add_task(name: str, workflow: Workflow) -> None:
    @shared_task(base=SupervisorTask, name=f"{queues.TASKS}.{name}")
    def run(**arguments: str) -> None:
        workflow(current_context(), **arguments)


for _name, _workflow in WORKFLOWS.items():
    _add_task(_name, _workflow)
