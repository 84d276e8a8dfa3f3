"""What SLURM's job states mean for the contract and for the bill. Pure;
docs/explanation/slurm-end-states.md explains them.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from supervisor_tasks.jobs.model import ChainStatus


class Phase(StrEnum):
    """How far a job is in SLURM."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class End:
    """What an end state means: the status for the contract and what is billed.
    `by_itself`: the exit status is the script's own. SLURM's commands disagree about
    the exit status of a job that SLURM ended. squeue shows the signal, or what the
    script made of it; sacct and the completion hook show 0. So for these jobs the
    contract gets `exit_status`, the same for every source.

    The bill counts the whole minutes of SLURM's elapsed time for every end state: the
    customer pays for used minutes. Suspended time is not elapsed time. A requeue starts
    the elapsed time at 0 again. A job that never ran has no elapsed time.
    """

    status: ChainStatus
    by_itself: bool = False
    exit_status: int = 0


# SLURM's own status, for any status of the script; squeue prints it, sacct prints 0:125
OUT_OF_MEMORY_STATUS = 253

# JOB STATE CODES of squeue(1), 22.05 to 25.11. These base states are end states. What
# the hooks make of them is in plugins/spool.py: change both.
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
COMPLETING = "COMPLETING"  # the script has ended, and its nodes are not free yet
_RUNNING = {"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
_PHASES = {
    **dict.fromkeys(_ENDED, Phase.ENDED),
    **dict.fromkeys(_WAITING, Phase.WAITING),
    **dict.fromkeys(_RUNNING, Phase.RUNNING),
}
# Reasons of a waiting job that cannot begin until its owner or the site changes the
# job, the partition or a limit. The job is held, depends on a failed job, or asks for
# more than the partition, the account or the QOS ever gives to one job. These are the
# reasons of libslurmfull.so, 22.05.8, and slurmctld's text in place of a reason
# ("launch failed requeued held"). PartitionNodeLimit is not one of them: by squeue(1)
# it can also mean that nodes are drained.
_FOR_GOOD = re.compile(
    r"Partition(TimeLimit|Config)|BadConstraints|Invalid(Account|QOS)|(Account|QOS)NotAllowed|QOSMin\w+"
    r"|(Assoc|QOS)Max\w+Per(Job|Node)(Limit)?|Job(Held(Admin|User)|HoldMaxRequeue)|.* held( .*)?"
    r"|MaxMemPerLimit|DependencyNeverSatisfied|ReservationDeleted"
)
# These flags hide the base state, so an end state does not show. They are UPDATE_DB and
# four others. COMPLETING: the end state comes when the nodes are free. LAUNCH_FAILED
# and RECONFIG_FAIL: the job is requeued or has failed. REVOKED: another cluster of a
# federation has the job. No table has them: the phase is unknown, and the worker looks
# again. After an hour it raises an alarm (jobs/stalled.py).


def phase(state: str) -> Phase:
    """Return the phase of a state. A state that is in no table is unknown, never
    success.
    """
    return _PHASES.get(state, Phase.UNKNOWN)


def never_begins(reason: str) -> bool:
    """Whether a job that waits for this reason cannot begin until its owner or the site
    changes something.
    """
    return _FOR_GOOD.fullmatch(reason.partition(",")[0]) is not None


def end(state: str) -> End:
    """Return the meaning of an end state. Raises KeyError for any other state; a retry
    does not help.
    """
    return _ENDED[state]
