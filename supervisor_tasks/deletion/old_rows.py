"""The deletion of old rows at night. One worker at a time does it, for a limited time,
until no old row is left.
"""

from collections.abc import Callable

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.execution.exclusive_run import run_exclusive
from supervisor_tasks.ledger.periodic_run_names import OLD_ROWS_DELETED
from supervisor_tasks.ledger.retention import Retention

log = structlog.get_logger()


def delete_old_rows(context: WorkerContext, goes_on: Callable[[], bool]) -> None:
    """Delete old rows, and write one line of the log about it. If rows are left, a
    worker deletes them at the next message of beat, or in the next night. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    run_exclusive(context.ledger, "retention", lambda: _delete(context, goes_on))


def _delete(context: WorkerContext, goes_on: Callable[[], bool]) -> bool:
    ledger = context.ledger
    rules = Retention(ledger.engine, ledger.cluster, context.retention_days)
    deleted = rules.delete(goes_on)
    if deleted.paused_for is not None:
        log.warning(
            "old_rows_kept",
            reason=deleted.paused_for,
            advice="supervisor retention resume",
        )
    if deleted.rows:
        log.info("old_rows_deleted", left=deleted.left, **deleted.rows)
    if not deleted.left:
        ledger.periodic_runs.record(OLD_ROWS_DELETED)
    return False
