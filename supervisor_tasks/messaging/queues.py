"""The queues of a cluster, and the queue of each task. Pure.

The queues separate the keys: only workers of the chain queue have the wallet's key, and
only workers of the slurm and benchmark queues have the SSH key.
"""

from enum import StrEnum

from supervisor_tasks.jobs.model import EffectKind


class Queue(StrEnum):
    """A queue that a worker can serve."""

    CHAIN = "chain"
    SLURM = "slurm"
    DEFAULT = "default"
    BENCHMARK = "benchmark"

    def of(self, cluster: str) -> str:
        """Return the queue's name at the broker. Several clusters may share a
        broker.
        """
        return f"{cluster}.{self.value}"


TASKS = "supervisor_tasks.tasks"

# The fetch task is in the chain queue because it signs a challenge with the wallet's
# key.
QUEUE_OF_TASK = {
    "claim": Queue.CHAIN,
    "scan": Queue.CHAIN,
    "accounts": Queue.CHAIN,
    "fetch": Queue.CHAIN,
    "report": Queue.CHAIN,
    "collect_receipts": Queue.CHAIN,
    "register": Queue.CHAIN,
    "submit": Queue.SLURM,
    "cancel": Queue.SLURM,
    "top_up": Queue.SLURM,
    "poll_jobs": Queue.SLURM,
    "check_slurm": Queue.SLURM,
    "sweep": Queue.SLURM,
    "benchmark": Queue.BENCHMARK,
    "refresh_inventory": Queue.SLURM,
    "notify_customer": Queue.DEFAULT,
    "dispatch_due_effects": Queue.DEFAULT,
    "check_alarms": Queue.DEFAULT,
    "notify": Queue.DEFAULT,
    "retention": Queue.DEFAULT,
}
# A task takes all effects that are due, so one message serves any number of them.
TASK_OF_KIND = {kind: kind.value for kind in EffectKind} | {
    EffectKind.POLL_SLURM: "poll_jobs",
    EffectKind.RETURN_JOB: "report",
    EffectKind.ACCOUNT: "accounts",
}
