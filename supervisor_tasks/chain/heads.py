"""The heads that a node announces, for threads that would otherwise poll for a new
block.
"""

import threading


class Heads:
    """Counts announcements. While `live` is true, a new block is announced as soon as
    the node has it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._announced = 0
        self.live = False

    def announce(self) -> None:
        """Count another announcement, and notify the threads that wait."""
        with self._changed:
            self._announced += 1
            self._changed.notify_all()

    def count(self) -> int:
        """How many announcements there were; an argument for `wait`."""
        with self._changed:
            return self._announced

    def wait(self, count: int, timeout_s: float) -> None:
        """Wait until there is another announcement after those `count` ones, or until
        the time has passed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._announced != count, timeout_s)
