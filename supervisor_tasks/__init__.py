"""The supervisor's Celery app: `celery -A supervisor_tasks worker|beat|flower`."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Build `app` at its first use: the operator's command does not need Celery, whose import takes 0.2 s."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from celery import Celery

    built = Celery("supervisor", include=["supervisor_tasks.tasks"])
    built.config_from_object("celeryconfig")
    globals()["app"] = built
    return built
