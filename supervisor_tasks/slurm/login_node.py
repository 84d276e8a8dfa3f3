"""The login node, on which the supervisor runs SLURM's commands."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor_tasks.errors import OutcomeUnknownError
from supervisor_tasks.slurm.parsers import CommandAnswer, SlurmUnavailableError
from supervisor_tasks.slurm.ssh import COMMAND_TIMEOUT_S, Ssh


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where the site keeps SLURM's commands. `sacct` is None at a site without
    accounting.
    """

    sbatch: str
    scancel: str
    scontrol: str
    squeue: str
    sacct: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginNode:
    """The login node of a cluster. `admin` is the Linux user who sees and changes all
    jobs. Threads may share it.
    """

    ssh: Ssh
    admin: str
    paths: Paths

    @property
    def address(self) -> str:
        """The address, for messages."""
        return self.ssh.address

    def close(self) -> None:
        """Close the connections."""
        self.ssh.close()

    def ask(
        self,
        argv: Sequence[str],
        stdin: bytes = b"",
        *,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> CommandAnswer:
        """Run a command as the admin user. The command must be safe to run twice.
        Raises SlurmUnavailableError or SshUnavailableError; retry later.
        """
        return self.ask_as(self.admin, argv, stdin, timeout_s=timeout_s)

    def ask_as(
        self,
        user: str,
        argv: Sequence[str],
        stdin: bytes = b"",
        *,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> CommandAnswer:
        """Run a command as this user, as `ask` does for the admin. Raises
        SlurmUnavailableError or SshUnavailableError; a retry helps.
        """
        try:
            return self.ssh.run(user, argv, stdin, timeout_s)
        except OutcomeUnknownError as error:
            raise SlurmUnavailableError(str(error)) from error


def new_delimiter() -> str:
    """Return a random delimiter, which cannot be guessed, to separate the parts of one
    answer.
    """
    return secrets.token_hex(16)
