"""What SLURM's job states mean to the contract and to the bill. Pure; docs/architecture.md has the same table in words."""

import re
from dataclasses import dataclass
from enum import StrEnum

from supervisor_tasks.job import ChainStatus


class Phase(StrEnum):
    """How far SLURM is with a job."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class End:
    """An end state: what the contract hears and what is billed. `by_itself` tells whether the exit status is the script's own.
    SLURM's commands disagree on that of a job that SLURM ended: squeue shows the signal, or what the script made of it,
    sacct and the completion hook show 0. So it is `exit_status`, whoever is asked.

    Billed are the whole minutes of SLURM's elapsed time, whatever the end: minutes that were used are minutes to be paid.
    Suspended time is no elapsed time, and a requeue lets it begin anew. A job that never ran has none.
    """

    status: ChainStatus
    by_itself: bool = False
    exit_status: int = 0


OUT_OF_MEMORY_STATUS = 253  # SLURM's own, whatever the script's was; squeue prints it so, and sacct 0:125

# JOB STATE CODES of squeue(1), 22.05 to 25.11. The base states that are an end:
_ENDED = {
    "COMPLETED": End(ChainStatus.FINISHED, by_itself=True),
    "FAILED": End(ChainStatus.FAILED, by_itself=True),
    "OUT_OF_MEMORY": End(ChainStatus.FAILED, exit_status=OUT_OF_MEMORY_STATUS),
    "TIMEOUT": End(ChainStatus.OUT_OF_CREDITS),
    "CANCELLED": End(ChainStatus.CANCELLED),
    "BOOT_FAIL": End(ChainStatus.FAILED),
    "DEADLINE": End(ChainStatus.FAILED),
    "NODE_FAIL": End(ChainStatus.FAILED),
    "PREEMPTED": End(ChainStatus.FAILED),
}
_WAITING = {
    "PENDING",
    "CONFIGURING",
    "POWER_UP_NODE",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
    "EXPEDITING",
}
_RUNNING = {"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
# Why SLURM lets a job wait that does not begin before somebody changes the job, the partition or a limit: it is held, depends
# on what has failed, asks for what the partition, the account or the QOS never gives to one job. Reasons of libslurmfull.so,
# 22.05.8, and what slurmctld says instead of one ("launch failed requeued held"). PartitionNodeLimit is none: squeue(1) says
# that it may also be that nodes are drained.
_FOR_GOOD = re.compile(
    r"Partition(TimeLimit|Config)|BadConstraints|Invalid(Account|QOS)|(Account|QOS)NotAllowed|QOSMin\w+"
    r"|(Assoc|QOS)Max\w+Per(Job|Node)(Limit)?|Job(Held(Admin|User)|HoldMaxRequeue)|.* held( .*)?"
    r"|MaxMemPerLimit|DependencyNeverSatisfied|ReservationDeleted"
)
# Flags that hide the base state, so that the end, if it is one, does not show: COMPLETING (the end state comes when the nodes
# are free), UPDATE_DB, LAUNCH_FAILED and RECONFIG_FAIL (the job is requeued or has failed), REVOKED (another cluster of a
# federation has the job). They are in no table: unknown, look again.


def phase(state: str) -> Phase:
    """The phase of a state; a state that we have never heard of is unknown, never success."""
    if state in _ENDED:
        return Phase.ENDED
    if state in _RUNNING:
        return Phase.RUNNING
    return Phase.WAITING if state in _WAITING else Phase.UNKNOWN


def never_begins(reason: str) -> bool:
    """Whether a job that waits for that reason waits until somebody changes something."""
    return _FOR_GOOD.fullmatch(reason.partition(",")[0]) is not None


def end(state: str) -> End:
    """What an end state means. Raises KeyError for a state that is none."""
    return _ENDED[state]
