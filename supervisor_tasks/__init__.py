"""The supervisor's Celery app: `celery -A supervisor_tasks worker|beat|flower`."""

import os
from typing import Any

# gRPC's library in C writes text of its own about connections between the lines of the log; callers get these as errors. It
# reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def __getattr__(name: str) -> Any:
    """Build `app` at its first use: the operator's command does not need Celery, whose import takes 0.2 s."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import sys

    from celery import Celery

    # The tasks import all that a worker does, which costs 100 MB; other processes only send them, by name.
    tasks = ["supervisor_tasks.tasks"] if "worker" in sys.argv else []
    built = Celery("supervisor", include=["supervisor_tasks.signals", *tasks])
    built.config_from_object("celeryconfig")
    built.events.dispatcher_cls = "supervisor_tasks.messaging.task_events:JobEventDispatcher"
    globals()["app"] = built
    return built
