"""How long a user's login that hangs is left alone, and how long one that is slow counts as slow. Pure.

A start-up file may answer what time it is, and hang when it is to run sbatch. So a login that answers ends the wait, and only a
command that was carried out in time has the next wait begin small again.
"""

from dataclasses import dataclass

FIRST_S = 30.0
SLOW_S = 5.0  # a command that took so long has a slow login, or a slow SLURM
SLOW_FOR_S = 300.0  # after the last such command
LONGEST_S = 300.0  # a home folder that is back is not missed for longer
NEVER_S = float("-inf")


@dataclass(slots=True)
class LoginSilence:
    """Until when a login is not asked again, by our own clock, how often in a row it hung, and until when it counts as slow."""

    until_s: float = NEVER_S
    since_s: float = NEVER_S
    times: int = 0
    slow_until_s: float = NEVER_S

    def left_s(self, now_s: float) -> float:
        """How long the login is not to be asked; 0 when it may be."""
        return max(self.until_s - now_s, 0.0)

    def hung(self, begun_s: float, now_s: float) -> None:
        """A command that began then hung until now. Commands that hang at the same time are one silence."""
        if begun_s < self.since_s:
            return
        self.since_s = now_s
        self.until_s = now_s + min(FIRST_S * 2**self.times, LONGEST_S)
        self.times += 1

    def took(self, seconds: float, now_s: float) -> None:
        """A command ended now that took so long. One quick command does not make a slow login quick: a start-up file may be
        slow at every second one.
        """
        if seconds >= SLOW_S:
            self.slow_until_s = now_s + SLOW_FOR_S

    def is_slow(self, now_s: float) -> bool:
        """Whether a command took long lately."""
        return now_s < self.slow_until_s

    def carried_out(self) -> None:
        """The login did what it was asked for."""
        self.times = 0
