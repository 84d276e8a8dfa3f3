"""Measures how slow the machine is now: how long a fixed piece of work takes, compared
with a quiet machine.

Every wait of devgrid and of the tests ends by a Deadline, so that a busy machine does
not make it fail.
"""

import hashlib
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

ROUNDS = 150_000
ROUNDS_TAKE_S = 0.04  # on a quiet machine; a disk's share is added to it
WRITES = 10
WRITE_TAKES_S = 0.005  # until it is on the disk; most disks need less
# The start of a bare Python. The kernel does most of it: in some hours it takes twice
# as long there while calculating takes as long as ever.
STARTS = 2
START_TAKES_S = 0.01
# waits are not prolonged more than this, so that a program that hangs is still reported
SLOWEST = 6.0
# A time-out in seconds is by a figure that is not older than this share of it, and not
# older than this: the measurement itself is a load.
AGE_SHARE = 1 / 3
MAX_AGE_S = 20.0


def slowness() -> float:
    """How many times as long as on a quiet machine the fixed piece of work takes now:
    from 1 to SLOWEST.
    """
    figure = max(
        _calculating_s() / ROUNDS_TAKE_S,
        _writing_s() / (WRITES * WRITE_TAKES_S),
        _starting_s() / (STARTS * START_TAKES_S),
    )
    return min(max(figure, 1.0), SLOWEST)


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


def _starting_s() -> float:
    begun_s = time.monotonic()
    for _ in range(STARTS):
        subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)
    return time.monotonic() - begun_s


class Deadline:
    """The end of a wait: `timeout_s` after its begin on a quiet machine, later on a
    slow one. The machine is measured when the time is over, so that a load that came
    meanwhile counts; a figure that was taken before does not.
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


class TimeOuts:
    """Time-outs in seconds, for calls that take a number. The machine is measured
    where the last figure is too old for the time-out.
    """

    def __init__(
        self,
        measure: Callable[[], float] = slowness,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._measure, self._now_s = measure, now_s
        self._measured_s, self._slowness = -math.inf, 1.0

    def of(self, timeout_s: float) -> float:
        """The time-out on the machine as it is; `timeout_s` on a quiet one."""
        if self._now_s() - self._measured_s > min(timeout_s * AGE_SHARE, MAX_AGE_S):
            self._measured_s, self._slowness = self._now_s(), self._measure()
        return timeout_s * self._slowness


_time_outs = TimeOuts()


def deadline(timeout_s: float) -> float:
    """A time-out in seconds, for a call that takes a number. A load that comes after
    this call does not count.
    """
    return _time_outs.of(timeout_s)
