"""Sends tasks: after a commit, a message has a worker do the new work. If the message
is lost, the work begins later.

No message goes to a queue that no worker serves, because Redis would grow without end.
"""

import math
import time
from collections.abc import Sequence
from functools import cache
from itertools import groupby

import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from supervisor_tasks.ledger.outbox import OpenEffect
from supervisor_tasks.messaging.backpressure import Backpressure
from supervisor_tasks.messaging.queues import TASK_OF_KIND, TASKS

log = structlog.get_logger()

MAX_SUBJECTS_IN_MESSAGE = 100  # in a message's arguments, which Flower shows
# messages in a queue; a burst of jobs is smaller, and so many take some megabytes of
# Redis
MAX_WAITING_EFFECT_MESSAGES = 10_000
# a task takes all effects that are due, so one message serves all that become due
# within this time
TOGETHER_S = 0.5


class TaskDispatcher:
    """Sends messages of tasks by Celery. If the broker does not answer, it logs a warning and
    raises nothing.
    """

    def __init__(
        self, app: Celery, most_waiting: int = MAX_WAITING_EFFECT_MESSAGES
    ) -> None:
        self._app = app
        self._backpressure = Backpressure(
            app.connection_or_acquire, most_waiting, "dispatcher"
        )
        self._turns: dict[str, int] = {}

    def dispatch_effects(self, effects: Sequence[OpenEffect]) -> None:
        """Send one message for each task of these effects.

        After a failed send it sends no more, because each try takes seconds; beat sends
        the other tasks.
        """
        wanted = self._without_backlogged(effects)
        for name, group in groupby(sorted(wanted, key=_task), key=_task):
            members = list(group)
            due_in_s = min(effect.due_in_s for effect in members)
            if not self._send_together(name, due_in_s, _shown(members)):
                return

    def dispatch(self, name: str) -> None:
        """Send a task at once."""
        self._send(name, 0.0)

    def _without_backlogged(self, effects: Sequence[OpenEffect]) -> list[OpenEffect]:
        """Leave out the effects that were dispatched before and whose queue is
        backlogged.

        Each message costs the workers time, and with a second message for these the
        queue would grow with its own length.
        """
        # the broker is asked once for each task
        is_backlogged = cache(self._is_backlogged)
        wanted = list[OpenEffect]()
        for effect in effects:
            if effect.notified and is_backlogged(_task(effect)):
                continue
            wanted.append(effect)
        return wanted

    def _send_together(self, name: str, due_in_s: float, shown: str) -> bool:
        """Send a task at once, or later with one message for all effects that become
        due within TOGETHER_S.

        Returns False after a failed send.
        """
        if due_in_s <= 0:
            return self._send(name, due_in_s, shown)
        now_s = time.monotonic()
        turn = math.ceil((now_s + due_in_s) / TOGETHER_S)
        if self._turns.get(name) == turn:
            return True
        self._turns[name] = turn
        return self._send(name, turn * TOGETHER_S - now_s, shown)

    def _is_backlogged(self, name: str) -> bool:
        return self._backpressure.is_backlogged(self._queue(name))

    def _queue(self, name: str) -> str:
        queue: str = self._app.amqp.router.route({}, f"{TASKS}.{name}")["queue"].name
        return queue

    def _send(self, name: str, due_in_s: float, shown: str | None = None) -> bool:
        """Send a task's message, if its queue has room. Returns False after a failed
        send.
        """
        if not self._backpressure.allows_one_more(self._queue(name)):
            return True  # beat sends the rest when a worker serves the queue again
        options = dict[str, object]()
        if due_in_s > 0:
            options["countdown"] = due_in_s
        if shown is not None:
            options["argsrepr"] = shown
        try:
            self._app.send_task(f"{TASKS}.{name}", **options)
        except OperationalError as error:
            log.warning("task_publish_failed", task=name, error=str(error))
            return False
        return True


def _task(effect: OpenEffect) -> str:
    return TASK_OF_KIND[effect.kind]


def _shown(effects: Sequence[OpenEffect]) -> str:
    """Return the subjects of a message's effects, as Flower shows them."""
    subjects = ", ".join(effect.subject for effect in effects[:MAX_SUBJECTS_IN_MESSAGE])
    if len(effects) > MAX_SUBJECTS_IN_MESSAGE:
        return f"({subjects} and {len(effects) - MAX_SUBJECTS_IN_MESSAGE} more)"
    return f"({subjects})"
