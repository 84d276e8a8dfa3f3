"""For how long a question was asked again and again without an answer."""

import time
from collections.abc import Callable

COUNTED_S = 10.0  # of the time between two failures: in a longer one it was not asked, and may well have had an answer


class Unanswered:
    """Counts the time over which each try failed. An hour between two failures, in which there was no try, is no silence of
    an hour.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s
        self._failed_s: float | None = None
        self.for_s = 0.0

    def failed(self) -> None:
        """There was no answer again."""
        now_s = self.now_s()
        if self._failed_s is not None:
            self.for_s += min(now_s - self._failed_s, COUNTED_S)
        self._failed_s = now_s

    def answered(self) -> None:
        """There was one."""
        self._failed_s, self.for_s = None, 0.0
