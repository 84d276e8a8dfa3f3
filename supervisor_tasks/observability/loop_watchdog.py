"""Ends a process whose main loop has stalled. systemd and compose restart a process only
when it ends; Kubernetes also asks /livez.

Beat, Flower and `supervisor metrics` have this watchdog. A worker and the gRPC process
have watchdogs of their own, which know more (messaging/consumer_watchdog.py,
grpc_callbacks/self_check.py).
"""

import os
import threading
import time

import structlog

from plugins.probes.dependencies import Dependencies
from plugins.probes.progress import Progress

log = structlog.get_logger()

ENDED_AFTER_S = 60.0
CHECK_EVERY_S = 5.0
# A process that was suspended as a whole goes on, and its loop comes round between two
# checks.
CONFIRMING_CHECKS = 2
LOG_WITHIN_S = 2.0
EXIT_STATUS = 1


class LoopWatchdog:
    """Decides whether the process must end. Pure but for the loop's clock."""

    def __init__(self, loop: Progress, dependencies: Dependencies) -> None:
        self._loop = loop
        self._dependencies = dependencies
        self._checks = 0

    def is_stalled(self) -> bool:
        """Whether the loop has not come round for ENDED_AFTER_S, at CONFIRMING_CHECKS checks
        in a row. A loop that waits for a service that does not answer has not stalled,
        nor has that of a process that was asked to end.
        """
        if self._dependencies.hold_loop:
            self._loop.completed()
        if self._loop.ending or self._loop.age_s < ENDED_AFTER_S:
            self._checks = 0
        else:
            self._checks += 1
        return self._checks >= CONFIRMING_CHECKS


def start_loop_watchdog(
    loop: Progress, dependencies: Dependencies, process: str
) -> None:
    """Start the thread that ends the process when its loop has stalled. `dependencies` must
    be started.
    """
    threading.Thread(
        target=_watch,
        args=(LoopWatchdog(loop, dependencies), loop, process),
        name="loop-watchdog",
        daemon=True,
    ).start()


def _watch(watchdog: LoopWatchdog, loop: Progress, process: str) -> None:
    while not watchdog.is_stalled():
        time.sleep(CHECK_EVERY_S)  # between two checks a resumed loop comes round
    _log_end(process, loop.age_s)
    # a normal end waits for the main thread
    os._exit(EXIT_STATUS)


def _log_end(process: str, age_s: float) -> None:
    """Log in another thread, for LOG_WITHIN_S at most: the loop may have stalled because
    the log takes no more lines.
    """

    def log_it() -> None:
        log.critical(
            "main_loop_stalled",
            process=process,
            age_s=round(age_s),
            advice="the process ends; start it again",
        )

    logging = threading.Thread(target=log_it, daemon=True)
    logging.start()
    logging.join(LOG_WITHIN_S)
