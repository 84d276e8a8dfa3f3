"""Measures how slow the machine is now: how long a fixed piece of work takes, compared
with a quiet machine.

Every wait of devgrid and of the tests ends by a Deadline, so that a busy machine does
not make it fail.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable

ROUNDS = 150_000
ROUNDS_TAKE_S = 0.04  # on a quiet machine; a disk's share is added to it
WRITES = 10
WRITE_TAKES_S = 0.005  # until it is on the disk; most disks need less
# waits are not prolonged more than this, so that a program that hangs is still reported
SLOWEST = 6.0
MEASURED_FOR_S = 20.0

_measured: tuple[float, float] | None = None  # when, and the figure


def slowness() -> float:
    """How many times as long as on a quiet machine the fixed piece of work takes: from
    1 to SLOWEST. The figure is measured again after MEASURED_FOR_S, as the measurement
    itself is a load.
    """
    global _measured
    if _measured is None or time.monotonic() - _measured[0] > MEASURED_FOR_S:
        figure = max(
            _calculating_s() / ROUNDS_TAKE_S, _writing_s() / (WRITES * WRITE_TAKES_S)
        )
        _measured = time.monotonic(), min(max(figure, 1.0), SLOWEST)
    return _measured[1]


def _calculating_s() -> float:
    begun_s = time.monotonic()
    hashlib.pbkdf2_hmac("sha256", b"fixed", b"work", ROUNDS)
    return time.monotonic() - begun_s


def _writing_s() -> float:
    with tempfile.TemporaryFile() as file:
        begun_s = time.monotonic()
        for _ in range(WRITES):
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
        return time.monotonic() - begun_s


class Deadline:
    """The end of a wait: `timeout_s` after its begin on a quiet machine, later on a
    slow one. The machine is measured when the time is over, so that a load that came
    meanwhile counts.
    """

    def __init__(
        self,
        timeout_s: float,
        measure: Callable[[], float] = slowness,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_s, self._measure, self._now_s = timeout_s, measure, now_s
        self._begun_s = now_s()
        self._slowness = 1.0

    @property
    def waited_s(self) -> float:
        """The time since the begin."""
        return self._now_s() - self._begun_s

    def is_over(self) -> bool:
        """Whether the wait has lasted long enough, by the greatest slowness that was
        measured since the begin.
        """
        if self.waited_s <= self._timeout_s * self._slowness:
            return False
        self._slowness = max(self._slowness, self._measure())
        return self.waited_s > self._timeout_s * self._slowness


def deadline(timeout_s: float) -> float:
    """A time-out in seconds, for a call that takes a number. The machine is measured
    now.
    """
    return timeout_s * slowness()
