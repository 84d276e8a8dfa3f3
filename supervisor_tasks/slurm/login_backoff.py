"""How long a user's login that hangs is left alone, and how long a slow login counts as
slow. Pure.

A start-up file may answer the clock question and then hang when the worker runs sbatch.
So an answer ends the wait, but only a command that was carried out in time makes the
next wait short again.
"""

from dataclasses import dataclass

from supervisor_tasks.execution.doubled_delay import doubled_delay_s

FIRST_S = 30.0
SLOW_S = 5.0  # a command that took so long means a slow login or a slow SLURM
SLOW_FOR_S = 300.0  # after the last such command
MAX_BACKOFF_S = 300.0  # a home folder that is back must not wait longer
NEVER_S = float("-inf")


@dataclass(slots=True)
class LoginBackoff:
    """Until when a login is left alone, by our own clock, how often in a row it hung,
    and until when it is slow.
    """

    until_s: float = NEVER_S
    since_s: float = NEVER_S
    times: int = 0
    slow_until_s: float = NEVER_S

    def left_s(self, now_s: float) -> float:
        """Return for how many seconds the login must be left alone; 0 when it may be
        asked.
        """
        return max(self.until_s - now_s, 0.0)

    def record_hang(self, begun_s: float, now_s: float) -> None:
        """Record that a command that began at `begun_s` has hung until now. Commands
        that hang at the same time count as one hang.
        """
        if begun_s < self.since_s:
            return
        self.since_s = now_s
        self.until_s = now_s + doubled_delay_s(self.times, FIRST_S, MAX_BACKOFF_S)
        self.times += 1

    def record_duration(self, took_s: float, now_s: float) -> None:
        """Record that a command that took `took_s` ended now. One quick command does
        not end the slow time: a start-up file may be slow only at every second command.
        """
        if took_s >= SLOW_S:
            self.slow_until_s = now_s + SLOW_FOR_S

    def is_slow(self, now_s: float) -> bool:
        """Whether a recent command took long."""
        return now_s < self.slow_until_s

    def record_success(self) -> None:
        """Record that the login carried out a command in time."""
        self.times = 0
