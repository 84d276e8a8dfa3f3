"""What a worker does every few seconds beside its effects: raise alarms for work that does
not continue by itself, add up the counters, and delete old callbacks.
"""

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.execution.effect_failures import update_effect_alarms
from supervisor_tasks.execution.exclusive_run import record_run
from supervisor_tasks.monitoring.heartbeat_alarm import update_heartbeat_alarm
from supervisor_tasks.monitoring.overdue_sweep import update_overdue_sweep_alarm

log = structlog.get_logger()


def check_alarms(context: WorkerContext) -> None:
    """Raise alarms for effects that are parked or overdue, for missing heartbeats, and
    for a sweep that is overdue.

    Also delete old callbacks about unknown jobs, and add up the counters.
    """
    ledger = context.ledger
    with record_run(ledger, "check_alarms"):
        update_effect_alarms(ledger)
        ledger.counters.fold()
        update_heartbeat_alarm(ledger)
        update_overdue_sweep_alarm(ledger)
        purged = ledger.callbacks.purge_unknown()
        if purged:
            log.info("unknown_callbacks_purged", callbacks=purged)
