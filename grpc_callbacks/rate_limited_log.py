"""A log with a limited rate: every caller that reaches the port causes lines, and
strangers must not flood the log.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

PERIOD_S = 10.0
MAX_LINES = 500  # lines a period; a busy site has fewer completions


class RateLimitedLogger:
    """Writes the first lines of each period, counts the others, and writes the counts.
    Threads may share it.
    """

    def __init__(self, log: Any, now_s: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now_s = now_s
        self._lock = threading.Lock()
        self._began_s = now_s()
        self._written = 0
        self._left_out: Counter[str] = Counter()
        self._seen = set[str]()  # of this period

    def info(self, event: str, **about: object) -> None:
        """Write a line; if the period has too many lines, only count it."""
        if self._may_write(event):
            self._log.info(event, **about)

    def warning(self, event: str, **about: object) -> None:
        """Write a warning; if the period has too many lines, only count it."""
        if self._may_write(event):
            self._log.warning(event, **about)

    def once(self, event: str, **about: object) -> None:
        """Write the first warning with this event name in a period, and count the
        others; for what strangers cause.
        """
        if self.is_first(event):
            self.warning(event, **about)

    def is_first(self, event: str) -> bool:
        """Return whether `once` would write the line, for a line that is expensive to
        make; if not, count it.
        """
        self.flush_dropped_counts()
        with self._lock:
            first = event not in self._seen
            self._seen.add(event)
            if not first:
                self._left_out[event] += 1
        return first

    def flush_dropped_counts(self) -> None:
        """If the period is over, write how many lines were left out in it, and begin a
        new one.
        """
        with self._lock:
            left_out = self._next_period()
        if left_out:
            self._log.warning("callbacks_not_logged", **left_out)

    def _may_write(self, event: str) -> bool:
        self.flush_dropped_counts()
        with self._lock:
            if self._written < MAX_LINES:
                self._written += 1
                return True
            self._left_out[event] += 1
            return False

    def _next_period(self) -> Counter[str]:
        if self._now_s() - self._began_s < PERIOD_S:
            return Counter()
        self._began_s, self._written, self._seen = self._now_s(), 0, set()
        left_out, self._left_out = self._left_out, Counter()
        return left_out
