"""The supervisor's Celery app: `celery -A supervisor_tasks worker|beat|flower`."""

import os
from typing import Any

from supervisor_tasks.chain.lazy_imports import make_lazy

# gRPC's library in C writes text about connections between the lines of the log;
# callers get the same as errors. The library reads this variable when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
make_lazy()


def __getattr__(name: str) -> Any:
    """Build `app` at its first use: the operator's command does not need Celery, whose
    import takes 0.2 s.
    """
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import sys

    from celery import Celery

    # The tasks' modules cost 100 MB. Only a worker imports them; other processes send
    # messages for the tasks by name.
    tasks = ["supervisor_tasks.tasks"] if "worker" in sys.argv else []
    celery_app = Celery("supervisor", include=["supervisor_tasks.signals", *tasks])
    celery_app.config_from_object("celeryconfig")
    celery_app.events.dispatcher_cls = (
        "supervisor_tasks.messaging.task_events:JobEventDispatcher"
    )
    globals()["app"] = celery_app
    return celery_app
