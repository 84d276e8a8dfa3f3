"""The heads that a node announces, for threads that would else ask again and again for a new block."""

import threading


class Heads:
    """The highest block that was announced. While `live`, a new block is announced as soon as it is there."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._announced = 0
        self.live = False

    def announce(self) -> None:
        """There is another block."""
        with self._changed:
            self._announced += 1
            self._changed.notify_all()

    def count(self) -> int:
        """How many blocks were announced; to be handed to `wait`."""
        with self._changed:
            return self._announced

    def wait(self, count: int, timeout_s: float) -> None:
        """Until another block than those `count` ones is announced, or the time has passed."""
        with self._changed:
            self._changed.wait_for(lambda: self._announced != count, timeout_s)
