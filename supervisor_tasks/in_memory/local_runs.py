"""Which exclusive work this process does now. A thread that wants work under way here
does not query the database.
"""

import threading
import time


class LocalRuns:
    """The exclusive work that runs in this process, by name. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked_again: dict[str, bool] = {}
        self._begun_s: dict[str, float] = {}
        self._apart_s: dict[str, float] = {}

    def begin(self, name: str) -> bool:
        """Begin the work. Returns False if another thread does it; that thread then
        does it once more.
        """
        with self._lock:
            is_running = name in self._asked_again
            self._asked_again[name] = is_running
            return not is_running

    def again(self, name: str) -> bool:
        """Whether the work was asked for since it began, or since the last call; if
        not, it has ended.
        """
        with self._lock:
            asked = self._asked_again[name]
            if asked:
                self._asked_again[name] = False
            else:
                del self._asked_again[name]
            return asked

    def delay_next_run(self, name: str, apart_s: float) -> None:
        """Let the next run of this work begin at least `apart_s` seconds after the
        beginning of the present one.
        """
        with self._lock:
            self._apart_s[name] = apart_s

    def wait_for_delay(self, name: str) -> None:
        """Wait as long as the last run of this work asked for. The run that begins then
        serves all that was asked for before.
        """
        with self._lock:
            begins_s = self._begun_s.get(name, float("-inf")) + self._apart_s.pop(
                name, 0.0
            )
        time.sleep(max(begins_s - time.monotonic(), 0.0))
        with self._lock:
            self._begun_s[name] = time.monotonic()
            if name in self._asked_again:
                self._asked_again[name] = False

    def end(self, name: str) -> None:
        """End the work after an error. Beat dispatches again what was asked for
        meanwhile.
        """
        with self._lock:
            self._asked_again.pop(name, None)
