"""The customers' homes on the login node: the check before a session begins as a
customer, and the output files of jobs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from supervisor_tasks.errors import TransientError, UndecidedError
from supervisor_tasks.jobs.model import Address, JobId
from supervisor_tasks.slurm.homes import Home, Homes, home_seen, look_command
from supervisor_tasks.slurm.interface import CLOCKS_DIFFER_S
from supervisor_tasks.slurm.login_node import LoginNode, new_delimiter
from supervisor_tasks.slurm.script_matching import last_writes, written_at
from supervisor_tasks.slurm.ssh_clock import SshClock


@dataclass(frozen=True, slots=True, kw_only=True)
class SshHomeCheck:
    """The check of a customer's home by the admin user. Threads may share it."""

    login_node: LoginNode
    homes: Homes

    def require_own(self, user: Address) -> None:
        """Check the customer's home; call it before a session begins as the customer.
        Raises UnsafeHomeError when another customer may decide what the session runs,
        and other TransientErrors when the login node gives no answer. A retry helps
        once that has changed.
        """
        self.homes.require_own(
            user, self._seen, log_in=lambda: self.login_node.ssh.clock(user)
        )

    def _seen(self, users: Sequence[str]) -> dict[str, Home | Exception]:
        """Return each user's home, or the error in its place."""
        delimiter = new_delimiter()
        answer = self.login_node.ask(look_command(delimiter, users))
        homes = dict[str, Home | Exception]()
        for user in users:
            try:
                homes[user] = home_seen(answer, delimiter, user)
            except TransientError as error:
                homes[user] = error
        return homes


@dataclass(frozen=True, slots=True, kw_only=True)
class SshJobLogs:
    """The output files of jobs, as sessions of their customers see them. Threads may
    share it.
    """

    login_node: LoginNode
    clock: SshClock
    homes: SshHomeCheck

    def log_files(
        self, user: Address, begun_ago_s: Mapping[JobId, float]
    ) -> dict[JobId, bool | UndecidedError]:
        """Return whether each of these jobs has written its output file since its
        submission began, as the login node sees it.
        """
        written = self.jobs_with_logs(user, begun_ago_s)
        return {job_id: job_id in written for job_id in begun_ago_s}

    def jobs_with_logs(
        self, user: Address, begun_ago_s: Mapping[JobId, float]
    ) -> set[JobId]:
        """Return the jobs of one customer that have written their output files since
        their submissions began, in one command. Raises UnsafeHomeError, because it
        begins a session as the customer; a retry helps once the operator has repaired
        the home.
        """
        self.homes.require_own(user)
        now_s = self.clock.now_s()
        answer = self.login_node.ssh.ask(
            user, last_writes(f"{job_id}.log" for job_id in begun_ago_s)
        )
        written = set[JobId]()
        for job_id, ago_s in begun_ago_s.items():
            begun_s = now_s - ago_s - CLOCKS_DIFFER_S
            written_s = written_at(answer, f"{job_id}.log")
            if written_s is not None and written_s >= begun_s:
                written.add(job_id)
        return written
