"""The queues of a cluster, and which kind of work goes to which. Pure.

Queues split the keys: only workers of the chain queue hold the wallet's key, only those of the slurm and benchmark queues the
SSH key.
"""

from enum import StrEnum

from supervisor_tasks.job import Kind


class Queue(StrEnum):
    """What a worker can serve."""

    CHAIN = "chain"
    SLURM = "slurm"
    DEFAULT = "default"
    BENCHMARK = "benchmark"

    def of(self, cluster: str) -> str:
        """The queue's name at the broker, which several clusters may share."""
        return f"{cluster}.{self.value}"


TASKS = "supervisor_tasks.tasks"
SWEEP_ASKED_EVERY_S = 10.0  # whether one is due

# Fetching signs a challenge with the wallet's key.
QUEUE_OF_TASK = {
    "claim": Queue.CHAIN,
    "scan": Queue.CHAIN,
    "accounts": Queue.CHAIN,
    "fetch": Queue.CHAIN,
    "report": Queue.CHAIN,
    "track": Queue.CHAIN,
    "register": Queue.CHAIN,
    "submit": Queue.SLURM,
    "cancel": Queue.SLURM,
    "top_up": Queue.SLURM,
    "witness": Queue.SLURM,
    "check_slurm": Queue.SLURM,
    "sweep": Queue.SLURM,
    "benchmark": Queue.BENCHMARK,
    "look_at_nodes": Queue.SLURM,
    "tell_user": Queue.DEFAULT,
    "nudge": Queue.DEFAULT,
    "watch": Queue.DEFAULT,
}
# A task takes all that is due: one message does for any number of effects.
TASK_OF_KIND = {kind: kind.value for kind in Kind} | {Kind.REFUSE: "report"}
