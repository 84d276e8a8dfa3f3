"""For `celery worker -I tests.support.not_receiving`: the worker receives no messages
once a file is in its HOME.

With FILE it still answers pings; a broadcast cannot cause this, as workers refuse it.
With FILE_OF_LOG its main loop stands while it writes a line of the log, which takes no
other line meanwhile.
"""

import logging
import threading
import time
from pathlib import Path
from typing import Any

from celery.signals import worker_ready

FILE = "stop-receiving"
FILE_OF_LOG = "stand-in-the-log"
QUEUE = "main.default"


def watch(sender: Any, **_: Any) -> None:
    """Wait for the files beside the worker's own work."""
    home = Path.home()
    for file, work in (
        (home / FILE, _cancel),
        (home / FILE_OF_LOG, _hold_log),
    ):
        threading.Thread(target=_await, args=(sender, file, work), daemon=True).start()


worker_ready.connect(watch, weak=False)


def _await(consumer: Any, file: Path, work: Any) -> None:
    while not file.exists():
        time.sleep(0.05)  # no notification when a file appears
    consumer.call_soon(work, consumer)


def _cancel(consumer: Any) -> None:
    consumer.cancel_task_queue(QUEUE)


def _hold_log(_: Any) -> None:
    for handler in logging.getLogger().handlers:
        handler.acquire()
    while True:
        time.sleep(60.0)  # until the process ends
