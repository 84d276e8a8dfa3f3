"""What a worker does for other programs that can write to its broker: it answers questions, and changes nothing.

Celery's workers obey broadcasts: shut down, stop consuming a queue, grow the pool, revoke a task. The project uses none of
these, and a program that can write to Redis could stop the fleet with one message. Flower needs the questions.
"""

from typing import Any

from celery.worker.control import Panel

# Questions of celery.worker.control that read, and two commands that only have the worker send its events. Not among them:
# objgraph, memdump and memsample, which cost memory and write files.
ANSWERED = (
    *("active", "active_queues", "clock", "conf", "ping", "query_task", "registered", "report", "reserved", "revoked"),
    *("scheduled", "stats", "dump_active", "dump_reserved", "dump_revoked", "dump_schedule", "dump_tasks"),
    *("enable_events", "heartbeat"),
)


def keep_questions_only() -> None:
    """Have the workers of this process refuse every other command. They log "No such control command"."""
    for name in [name for name in Panel.data if name not in ANSWERED]:
        del Panel.data[name]
    Panel.register(name="hello", type="inspect", visible=False)(_hello)


def _hello(state: Any, from_node: str, revoked: object = None, **_: object) -> dict[str, Any] | None:
    """A worker that starts asks for clocks and revoked tasks. Celery's own answer also revokes what the caller names."""
    del revoked
    return {"revoked": {}, "clock": state.app.clock.forward()} if from_node != state.hostname else None
