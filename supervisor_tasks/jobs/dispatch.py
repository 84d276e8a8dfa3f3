"""Send messages for effects that are due and have no message under way."""

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.execution.exclusive_run import record_run


def dispatch_due_effects(context: WorkerContext) -> None:
    """Dispatch the due effects whose message was lost, whose worker died, or whose time
    has come. Raises LedgerUnavailableError, when the database does not answer; a retry
    helps.
    """
    ledger = context.ledger
    with record_run(ledger, "dispatch_due_effects"):
        due = ledger.effects.due_without_message()
        if due:
            ledger.effects.dispatch_effects(due)
