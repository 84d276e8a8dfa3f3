"""The login node's clock, by which submissions are timed."""

from dataclasses import dataclass, replace

from supervisor_tasks.errors import TransientError
from supervisor_tasks.slurm.guarded_command import LoginClock
from supervisor_tasks.slurm.login_node import LoginNode
from supervisor_tasks.slurm.ssh import our_clock_s
from supervisor_tasks.slurm.submit_token import LOGIN_CLOCK_APART_S


class ClocksDifferError(TransientError):
    """A user's session shows another time than the admin's. Nothing was submitted."""

    def __init__(self, user: str, admin: str, address: str, ahead_s: int) -> None:
        super().__init__(
            f"the clock of {user}'s session on {address} is {ahead_s:+d} s to that of {admin}'s session; "
            f"expected at most {LOGIN_CLOCK_APART_S} s. If the login nodes behind {address} show the same time, "
            f"a start-up file of {user} prints a false one; else start chrony or ntpd on them"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SshClock:
    """The clock of the login node. Threads may share it."""

    login_node: LoginNode

    def of(self, user: str) -> LoginClock:
        """Return the login node's clock, as this user sees it, with the path of the
        admin's SLURM configuration. Raises SshUnavailableError when the login node
        rejects the connection, ClocksDifferError when this clock is not the admin's. A
        retry helps.

        The user's clock counts, because one address may lead to several login nodes. A
        start-up file can print a false one, and submissions would count for longer.
        """
        clock, admins = self.login_node.ssh.clock(user), self._admins_clock()
        ahead_s = clock.ahead_of_s(admins)
        if abs(ahead_s) > LOGIN_CLOCK_APART_S:
            # a clock that was just set must not be rejected twice
            self.login_node.ssh.discard_clock(user)
            self.login_node.ssh.discard_clock(self.login_node.admin)
            raise ClocksDifferError(
                user, self.login_node.admin, self.login_node.address, ahead_s
            )
        return replace(clock, slurm_conf=admins.slurm_conf)

    def now_s(self) -> int:
        """Return the site's time (Unix time) by the login node's clock. Raises
        SshUnavailableError; a retry helps.
        """
        return self._admins_clock().at(our_clock_s())

    def _admins_clock(self) -> LoginClock:
        return self.login_node.ssh.clock(self.login_node.admin, is_admin=True)
