"""The question about the partition's nodes, over SSH."""

import secrets
from dataclasses import dataclass

from supervisor_tasks.errors import OutcomeUnknownError
from supervisor_tasks.slurm.hardware import (
    PartitionHardware,
    ask_hardware,
    read_hardware,
)
from supervisor_tasks.slurm.parsers import SlurmUnavailableError
from supervisor_tasks.slurm.ssh import Ssh


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The nodes of a partition. With `unresponsive` (BENCHMARK_UNRESPONSIVE), nodes
    that do not work count too. Threads may share it.
    """

    ssh: Ssh
    admin: str
    scontrol: str
    sinfo: str
    partition: str
    unresponsive: bool = False

    def hardware(self) -> PartitionHardware:
        """Return the hardware that counts, in one command. Raises SlurmUnavailableError
        or SshUnavailableError; retry later.
        """
        delimiter = secrets.token_hex(16)
        argv = ask_hardware(self.scontrol, self.sinfo, self.partition)
        try:
            answer = self.ssh.run(self.admin, argv, delimiter.encode() + b"\n")
        except OutcomeUnknownError as error:
            raise SlurmUnavailableError(str(error)) from error
        return read_hardware(
            answer, delimiter, self.partition, unresponsive=self.unresponsive
        )
