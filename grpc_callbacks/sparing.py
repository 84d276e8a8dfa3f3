"""A log that strangers cannot flood: whoever reaches the port makes lines of it."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

PERIOD_S = 10.0
MOST = 500  # lines a period; a busy site has fewer completions


class Sparing:
    """Writes the first lines of each period, counts the others, and writes the counts. Threads may share it."""

    def __init__(self, log: Any, now_s: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now_s = now_s
        self._lock = threading.Lock()
        self._began_s = now_s()
        self._written = 0
        self._left_out: Counter[str] = Counter()
        self._seen = set[str]()  # of this period

    def info(self, event: str, **about: object) -> None:
        """A line that may be left out."""
        if self._may_write(event):
            self._log.info(event, **about)

    def warning(self, event: str, **about: object) -> None:
        """A warning that may be left out, but is counted."""
        if self._may_write(event):
            self._log.warning(event, **about)

    def once(self, event: str, **about: object) -> None:
        """A warning of what strangers do: the first of its kind in a period is written, the others are counted."""
        if self.is_first(event):
            self.warning(event, **about)

    def is_first(self, event: str) -> bool:
        """Whether `once` would write the line, for a line that costs something to make; if not, it is counted."""
        self.tell_left_out()
        with self._lock:
            first = event not in self._seen
            self._seen.add(event)
            if not first:
                self._left_out[event] += 1
        return first

    def tell_left_out(self) -> None:
        """Write how many lines of the last period were left out, if it is over."""
        with self._lock:
            left_out = self._next_period()
        if left_out:
            self._log.warning("callbacks_not_logged", **left_out)

    def _may_write(self, event: str) -> bool:
        self.tell_left_out()
        with self._lock:
            if self._written < MOST:
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
