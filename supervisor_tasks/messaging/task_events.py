"""Which of a worker's events Flower gets, and under which names.

Beat sends most tasks again and again, and most of these find nothing to do. So the
events of a task are held until it ends, or takes longer than HELD_S. After its end they
are sent only if the task did something to a job, was sent for jobs that its arguments
name, or failed. Flower shows what happens to jobs, and not hundreds of idle runs an hour.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from celery.events.dispatcher import EventDispatcher

from supervisor_tasks.jobs.task_summary import JOB_FAILED

Fields = dict[str, Any]
Events = list[tuple[str, Fields]]

RECEIVED, STARTED, SUCCEEDED = "task-received", "task-started", "task-succeeded"
ENDS = (SUCCEEDED, "task-failed", "task-rejected", "task-revoked")
# Flower shows an event of an unknown name as a state of the task: JOB-FAILED. It is not
# green, and `state:JOB-FAILED` finds it.
FAILED_JOB = "task-job-failed"
NO_RESULT = (None, "", "None")
NO_ARGUMENTS = (None, "", "()")
# a task that runs longer is shown while it runs; the next heartbeat (every 2 s) sends
# its held events
HELD_S = 5.0
MAX_HELD_TASKS = 1000  # tasks; a worker has 16 at once, and some in advance


class HeldEvents:
    """Decides for each event whether it is sent now, later or never. Threads may share
    it.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._held: OrderedDict[str, Events] = OrderedDict()
        self._lock = threading.Lock()

    def sent_now(self, kind: str, fields: Fields) -> Events:
        """Return the events that are sent now, in their order."""
        with self._lock:
            slow = self._slow()
            if kind == RECEIVED:
                self._hold({**fields, "name": short_name(fields.get("name"))})
                return slow
            if fields.get("uuid") in self._held:
                return slow + self._of_held_task(kind, fields)
        return [*slow, _shown(kind, fields)]

    def _hold(self, fields: Fields) -> None:
        self._held[fields["uuid"]] = [(RECEIVED, self._stamped(fields))]
        # the oldest tasks sent no event of their end, as at a lost connection
        while len(self._held) > MAX_HELD_TASKS:
            self._held.popitem(last=False)

    def _of_held_task(self, kind: str, fields: Fields) -> Events:
        uuid = fields["uuid"]
        if kind not in ENDS:
            self._held[uuid].append((kind, self._stamped(fields)))
            return []
        held = self._held.pop(uuid)
        did_nothing = kind == SUCCEEDED and fields.get("result") in NO_RESULT
        if did_nothing and held[0][1].get("args") in NO_ARGUMENTS:
            return []
        return [*held, _shown(kind, fields)]

    def _slow(self) -> Events:
        """Return the held events of tasks that have run for HELD_S, and hold them no
        longer.
        """
        long_ago_s = self._now_s() - HELD_S
        slow = Events()
        for uuid, held in [*self._held.items()]:
            if _began_before(long_ago_s, held):
                slow += self._held.pop(uuid)
        return slow

    def _stamped(self, fields: Fields) -> Fields:
        return {"timestamp": self._now_s(), **fields}


class JobEventDispatcher(EventDispatcher):  # type: ignore[misc]  # Celery has no types
    """Sends a worker's events as `HeldEvents` decides. After a reconnection, a new
    dispatcher has the same held events.
    """

    held = HeldEvents()

    def send(self, type: str, *args: Any, **fields: Any) -> None:
        """Send an event, or hold it."""
        for kind, fields_now in self.held.sent_now(type, fields):
            super().send(kind, *args, **fields_now)


def short_name(name: str | None) -> str:
    """Return a task's name without its module."""
    return (name or "").rpartition(".")[2]


def _shown(kind: str, fields: Fields) -> tuple[str, Fields]:
    """Return the event, under a name of its own if the task succeeded and its job did
    not.
    """
    if kind == SUCCEEDED and JOB_FAILED in str(fields.get("result")):
        return FAILED_JOB, fields
    return kind, fields


def _began_before(long_ago_s: float, held: Events) -> bool:
    """Return whether the held events of a task show that it began before that time."""
    return any(
        kind == STARTED and fields["timestamp"] <= long_ago_s for kind, fields in held
    )
