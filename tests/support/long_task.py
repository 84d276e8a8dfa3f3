"""For `celery worker -I tests.support.long_task`: a task that runs until a test lets it
end.

It tells its beginning and its end by files in the worker's HOME.
"""

import time
from pathlib import Path

from celery import shared_task

NAME = "tests.long_task"
BEGUN = "long-task-begun"
MAY_END = "long-task-may-end"
ENDED = "long-task-ended"


@shared_task(name=NAME)  # type: ignore[untyped-decorator]  # Celery has no types
def long_task() -> None:
    """Run until the file MAY_END is there."""
    (Path.home() / BEGUN).touch()
    while not (Path.home() / MAY_END).exists():
        time.sleep(0.05)  # no notification when a file appears
    (Path.home() / ENDED).touch()
