"""Wake-ups: after a commit a message tells some worker that there is something to do. One that is lost is only late."""

from collections.abc import Sequence
from itertools import groupby

import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from supervisor_tasks.ledger.store import OpenEffect
from supervisor_tasks.queues import DRAIN_OF_KIND, TASKS

log = structlog.get_logger()

SHOWN_JOBS = 5


class WakeUps:
    """Sends wake-ups by Celery. A broker that does not answer is worth a warning and nothing else."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def effects(self, effects: Sequence[OpenEffect]) -> None:
        """One message for each step, one for each drain. While the broker is away the first is tried, and a try takes
        seconds; the clock wakes the others.
        """
        steps = [effect for effect in effects if effect.kind not in DRAIN_OF_KIND]
        for effect in steps:
            if not self._send(effect.kind.value, (effect.job_id, effect.id), effect.due_in_s):
                return
        drained = [effect for effect in effects if effect.kind in DRAIN_OF_KIND]
        for name, group in groupby(sorted(drained, key=_drain_name), key=_drain_name):
            members = list(group)
            about = ", ".join(effect.job_id for effect in members[:SHOWN_JOBS])
            more = f" and {len(members) - SHOWN_JOBS} more" if len(members) > SHOWN_JOBS else ""
            if not self._send(name, (), min(effect.due_in_s for effect in members), f"({about}{more})"):
                return

    def drain(self, name: str) -> None:
        """Wake a drain."""
        self._send(name, (), 0.0)

    def _send(self, name: str, args: tuple[object, ...], due_in_s: float, shown: str | None = None) -> bool:
        options: dict[str, object] = {"countdown": due_in_s} if due_in_s > 0 else {}
        if shown is not None:
            options["argsrepr"] = shown
        try:
            self._app.send_task(f"{TASKS}.{name}", args=args, **options)
        except OperationalError as error:
            log.warning("wake_up_lost", task=name, error=str(error))
            return False
        return True


def _drain_name(effect: OpenEffect) -> str:
    return DRAIN_OF_KIND[effect.kind]
