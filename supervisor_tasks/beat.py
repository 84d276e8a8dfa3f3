"""Connects beat's scheduler with the ledger when `celery beat` starts."""

from functools import cache, partial

from supervisor_tasks.config.embedded_servers import database_url
from supervisor_tasks.config.settings import load_or_exit, or_exit
from supervisor_tasks.ledger.driver import DriverConnection
from supervisor_tasks.ledger.due import Due
from supervisor_tasks.ledger.periodic_run_names import QUEUE
from supervisor_tasks.messaging.beat_scheduler import BeatScheduler, Question, Waiting
from supervisor_tasks.messaging.due_rules import (
    EXCLUSIVE_TASKS,
    FACTS,
    RULES,
    RuleSettings,
    due,
)


@cache
def _question() -> Question:
    """Build the query once for this process: Celery makes a second scheduler only to
    show its schedule.
    """
    settings = load_or_exit()
    with or_exit():
        connection = DriverConnection(database_url(settings))
    query = Due(connection.execute, settings.cluster_name, EXCLUSIVE_TASKS, FACTS)
    rules = RuleSettings(
        slurm_retry_interval_s=settings.slurm_retry_interval_s,
        hardware_stable_s=settings.hardware_stable_s,
        has_directory=settings.ldap_url is not None,
        start_block=settings.metascheduler_start_block,
        retention_hour=settings.retention_hour,
    )
    return lambda waiting: due(
        query.ask(partial(_readings, settings.cluster_name, waiting)), rules
    )


def _readings(cluster: str, waiting: Waiting) -> dict[str, int]:
    """Return how many messages wait in each queue, by the name that the ledger stores
    it under.
    """
    return {
        f"{QUEUE}{name.removeprefix(f'{cluster}.')}": length
        for name, length in waiting().items()
    }


class LedgerBeat(BeatScheduler):
    """Beat's scheduler with the ledger of this cluster."""

    tasks = RULES

    def open_question(self) -> Question:
        """Return the query of the ledger. Ends the process with status 2 when it cannot
        open the ledger.
        """
        return _question()
