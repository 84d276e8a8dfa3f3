"""When a process's main loop last came round. A process is alive while it does: it can hold its port open and do nothing."""

import time
from collections.abc import Callable

STANDS_AFTER_S = 15.0  # a loop that has not come round for so long stands still; a broker that hangs takes 13 s at most


class Progress:
    """The loop of a process. `mark` costs nothing and may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marked_s = clock()
        self._ending = False

    def mark(self) -> None:
        """The loop has come round, or waits for a dependency and knows it."""
        self._marked_s = self._clock()

    def end(self) -> None:
        """The process has been asked to end and finishes its work. Its loop does not come round any more."""
        self._ending = True

    @property
    def ending(self) -> bool:
        """Whether the process has been asked to end."""
        return self._ending

    @property
    def age_s(self) -> float:
        """Seconds since the loop last came round."""
        return self._clock() - self._marked_s

    @property
    def stands(self) -> bool:
        """Whether the process must be started again."""
        return not self._ending and self.age_s > STANDS_AFTER_S


LOOP = Progress()
"""The main loop of this process, of which there is one."""
