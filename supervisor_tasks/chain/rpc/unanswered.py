"""For how long a question was repeated without an answer."""

import time
from collections.abc import Callable

# the most that counts between two failures: a longer gap had no try, and a try might
# have succeeded
COUNTED_S = 10.0
# A busy endpoint is there: its time counts so many times less. Others may keep it busy.
BUSY_COUNTS_LESS = 20


class Unanswered:
    """Counts the time over which each try failed. An hour between two failures does not
    count as an hour of silence when there was no try in it.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._failed_s: float | None = None
        self.for_s = 0.0

    def failed(self, *, busy: bool = False) -> None:
        """A try failed again; `busy`: because of a limit for the rate of requests."""
        now_s = self._now_s()
        if self._failed_s is not None:
            since_s = min(now_s - self._failed_s, COUNTED_S)
            self.for_s += since_s / BUSY_COUNTS_LESS if busy else since_s
        self._failed_s = now_s

    def answered(self) -> None:
        """A try succeeded: the time starts at zero."""
        self._failed_s, self.for_s = None, 0.0
