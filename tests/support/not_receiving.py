"""For `celery worker -I tests.support.not_receiving`: the worker receives no messages
once a file is in its HOME.

It still answers pings. A broadcast cannot cause this, as workers refuse it.
"""

import threading
import time
from pathlib import Path
from typing import Any

from celery.signals import worker_ready

FILE = "stop-receiving"
QUEUE = "main.default"


def watch(sender: Any, **_: Any) -> None:
    """Wait for the file beside the worker's own work."""
    threading.Thread(
        target=_cancel, args=(sender, Path.home() / FILE), daemon=True
    ).start()


worker_ready.connect(watch, weak=False)


def _cancel(consumer: Any, file: Path) -> None:
    while not file.exists():
        time.sleep(0.05)  # no notification when a file appears
    consumer.call_soon(consumer.cancel_task_queue, QUEUE)
