"""slurmctld's clock, by which submissions are timed over slurmrestd."""

from dataclasses import dataclass, field

from supervisor_tasks.slurm import rest_answers
from supervisor_tasks.slurm.guarded_command import LoginClock
from supervisor_tasks.slurm.interface import CONTROLLER_TIMEOUT_S
from supervisor_tasks.slurm.rest_access import RestAccess
from supervisor_tasks.slurm.ssh import our_clock_s

CLOCK_KNOWN_FOR_S = 60.0


@dataclass(slots=True)
class _KnownClock:
    """The last reading of slurmctld's clock by this process."""

    clock: LoginClock | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestClock:
    """slurmctld's clock. Threads may share it."""

    access: RestAccess
    _known_clock: _KnownClock = field(default_factory=_KnownClock)

    def of(self, user: str) -> LoginClock:  # noqa: ARG002  slurmctld has one clock for all
        """Return slurmctld's clock, asked now. Raises SlurmUnavailableError when
        slurmctld does not answer; a retry helps.
        """
        slurm_s = rest_answers.clock_s(self.access.ask("diag", CONTROLLER_TIMEOUT_S))
        clock = LoginClock(slurm_s, our_clock_s())
        self._known_clock.clock = clock
        return clock

    def now_s(self) -> int:
        """Return the site's time (Unix time) by slurmctld's clock. Raises
        SlurmUnavailableError when slurmctld does not answer; a retry helps.
        """
        clock = self._known_clock.clock
        if clock is None or our_clock_s() - clock.our_s > CLOCK_KNOWN_FOR_S:
            clock = self.of(self.access.admin)
        return clock.at(our_clock_s())
