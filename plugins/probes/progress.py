"""When a process's main loop last completed a round. A process is alive while its loop
does so. An open port does not show that: a process can hold it open and do nothing.
"""

import time
from collections.abc import Callable

# a loop without a round for so long is stalled; a broker that hangs takes 10 s at
# most
STALLED_AFTER_S = 15.0
PROGRESS_EVERY_S = 1.0  # in which an idle loop tells of a round


class Progress:
    """The loop of a process. `completed` costs nothing and may be called from any
    thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._completed_s = clock()
        self._ending = False

    def completed(self) -> None:
        """Store that the loop has completed a round, or that it waits for a dependency
        and knows it.
        """
        self._completed_s = self._clock()

    def end(self) -> None:
        """Store that the process has been asked to end and finishes its work. Its loop
        completes no more rounds.
        """
        self._ending = True

    @property
    def ending(self) -> bool:
        """Whether the process has been asked to end."""
        return self._ending

    @property
    def age_s(self) -> float:
        """Seconds since the loop last completed a round."""
        return self._clock() - self._completed_s

    @property
    def is_stalled(self) -> bool:
        """Whether the process must be started again."""
        return not self._ending and self.age_s > STALLED_AFTER_S


LOOP = Progress()
"""The main loop of this process; it has one."""
