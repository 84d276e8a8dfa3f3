"""The question about the partition's nodes, over slurmrestd."""

from dataclasses import dataclass

from supervisor_tasks.slurm import rest_answers
from supervisor_tasks.slurm.hardware import PartitionHardware
from supervisor_tasks.slurm.rest_access import RestAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class RestNodes:
    """The nodes of a partition over slurmrestd. With `unresponsive`
    (BENCHMARK_UNRESPONSIVE), nodes that do not work count too. Threads may share it.
    """

    access: RestAccess
    partition: str
    unresponsive: bool = False

    def hardware(self) -> PartitionHardware:
        """Return the hardware that counts, in two requests. Raises
        SlurmUnavailableError; retry later.
        """
        partitions, nodes = self.access.ask("partitions"), self.access.ask("nodes")
        return rest_answers.partition_hardware(
            partitions, nodes, self.partition, unresponsive=self.unresponsive
        )
