"""The worker of this process. It is built at the start, with the keys that its queues
need.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import structlog
from celery import Celery

from supervisor_tasks.config import logging as logs
from supervisor_tasks.config.needs import Need, needs_of_queues
from supervisor_tasks.config.settings import load_or_exit, or_exit
from supervisor_tasks.config.variables import warn_of_mistyped
from supervisor_tasks.messaging.queues import Queue
from supervisor_tasks.messaging.worker_arguments import queues_named

if TYPE_CHECKING:
    from supervisor_tasks.context import WorkerContext
    from supervisor_tasks.lifecycle import Worker

log = structlog.get_logger()

_current: list["Worker"] = []


def needs_of_command(argv: Sequence[str]) -> list[Need]:
    """Return the needs of a `celery` command line, before Celery reads it.

    So the process can report all errors of the environment at once.
    """
    if "worker" not in argv:
        return []
    return needs_of_queues(queues_named(argv) or list(Queue))


def process_of_command(argv: Sequence[str]) -> str:
    """Return which process a `celery` command line starts. Celery's other commands
    need the broker and no key, as beat does.
    """
    return next((name for name in ("worker", "flower") if name in argv), "beat")


def current_worker() -> "Worker":
    """Return this process's worker. Raises LookupError outside of a worker; a retry
    does not help.
    """
    if not _current:
        raise LookupError("no worker: tasks run in `celery -A supervisor_tasks worker`")
    return _current[0]


def current_context() -> "WorkerContext":
    """Return the worker's context. Raises LookupError outside of a worker; a retry does
    not help.
    """
    return current_worker().context


def set_up_logging(**_: object) -> None:
    """Configure the logs of Celery's processes like those of our other processes."""
    settings = load_or_exit()
    logs.configure(
        settings.effective_log_level, settings.secret_values(), settings.cluster_name
    )
    logs.log_crashes()
    warn_of_mistyped()


def on_worker_init(sender: Any, **_: object) -> None:
    """Build the context for the queues that the worker consumes, or end the process
    with status 2.

    A worker without a context would lose every message that it receives, and Celery
    continues when a signal's handler fails.
    """
    set_up_logging()
    try:
        with or_exit():
            worker = _build_worker(sender.app)
            _hold_wallet(worker)
            _current.append(worker)
    except Exception as error:
        log.exception(
            "worker_startup_failed",
            advice="the worker ends; start it again when that is mended",
        )
        raise SystemExit(2) from error


def _hold_wallet(worker: "Worker") -> None:
    """Store that this cluster works with the worker's wallet. Raises WalletTakenError
    if another cluster does, and OtherChainError if the ledger has read another chain.

    If the ledger does not answer, or has no tables yet, the worker's first task tries
    again.
    """
    from sqlalchemy.exc import DBAPIError

    from supervisor_tasks.errors import LedgerUnavailableError

    try:
        worker.hold_wallet()
    except (LedgerUnavailableError, DBAPIError) as error:
        log.warning("wallet_not_checked_yet", error=str(error).partition("\n")[0])


def _build_worker(app: Celery) -> "Worker":
    """Build the worker for its queues and the default queue.

    The import is in this function because it costs 100 MB, and beat and Flower load
    this module without it. Every worker serves the default queue, also if its -Q leaves
    that queue out. For its task notify it keeps the URLs and passwords of NOTIFY_*; the
    queue needs no other key. Without its tasks dispatch_due_effects, check_alarms and
    notify, effects without a message are not dispatched, and the operator is not called.
    """
    from supervisor_tasks.bootstrap import build

    cluster = load_or_exit().cluster_name
    queues = app.amqp.queues
    queues.select_add(queues[Queue.DEFAULT.of(cluster)])
    served = {queue for queue in Queue if queue.of(cluster) in queues.consume_from}
    return build(load_or_exit(*needs_of_queues(served)), served, app)


def on_worker_ready(**_: object) -> None:
    """Dispatch the tasks that do not wait for beat when a worker starts."""
    current_worker().on_ready()


def start_watchdog(sender: Any, **_: object) -> None:
    """Start the thread that ends the worker when it no longer receives messages."""
    from supervisor_tasks.lifecycle import goes_on
    from supervisor_tasks.messaging.consumer_watchdog import start_consumer_watchdog

    watchdog_timeout_s = load_or_exit().worker_watchdog_timeout_s
    if watchdog_timeout_s:
        start_consumer_watchdog(sender, watchdog_timeout_s, goes_on)


def on_worker_shutdown(**_: object) -> None:
    """Close the connections and threads of the worker's context."""
    while _current:
        _current.pop().close()
