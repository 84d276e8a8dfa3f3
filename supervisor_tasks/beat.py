"""Beat with its ledger: put together when `celery beat` starts."""

from functools import cache

from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.due import Due
from supervisor_tasks.messaging.beat_scheduler import BeatScheduler, Question
from supervisor_tasks.messaging.due_rules import FACTS, GUARDED, RULES, RuleSettings, due
from supervisor_tasks.settings import load_or_exit, or_exit

CONNECTIONS = 1


@cache
def _question() -> Question:
    """One for all schedulers of this process: Celery makes a second one only to show its schedule."""
    settings = load_or_exit()
    with or_exit():
        engine = open_engine(settings, CONNECTIONS)
    asked = Due(engine, settings.cluster_name, GUARDED, FACTS)
    rules = RuleSettings(
        slurm_try_every_s=settings.slurm_try_every_s,
        hardware_settled_s=settings.hardware_settled_s,
        has_directory=settings.ldap_url is not None,
        start_block=settings.metascheduler_start_block,
    )
    return lambda: due(asked.look(), rules)


class LedgerBeat(BeatScheduler):
    """Beat's scheduler, which asks the ledger of this cluster."""

    tasks = RULES

    def open_question(self) -> Question:
        """The ledger's. Ends the process with status 2 where no ledger can be had."""
        return _question()
