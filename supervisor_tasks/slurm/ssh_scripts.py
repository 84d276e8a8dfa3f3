"""The batch scripts of SLURM's jobs, read on the login node."""

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor_tasks.jobs.model import SlurmId
from supervisor_tasks.slurm.login_node import LoginNode, new_delimiter
from supervisor_tasks.slurm.script_matching import (
    MAX_SCRIPTS,
    read_scripts,
    script_heads,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SshScripts:
    """The batch scripts that slurmctld keeps. Threads may share it."""

    login_node: LoginNode

    def headers(self, slurm_ids: Sequence[SlurmId]) -> dict[SlurmId, str]:
        """Return the second lines of these jobs' scripts. Scripts that could not be
        read are left out. One command reads up to 500 scripts.
        """
        headers = dict[SlurmId, str]()
        for first in range(0, len(slurm_ids), MAX_SCRIPTS):
            delimiter = new_delimiter()
            part = slurm_ids[first : first + MAX_SCRIPTS]
            argv = read_scripts(self.login_node.paths.scontrol, part)
            answer = self.login_node.ask(argv, delimiter.encode() + b"\n")
            headers |= script_heads(answer, delimiter)
        return headers
