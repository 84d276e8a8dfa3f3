"""What SLURM's job states mean to the contract. Pure."""

from enum import StrEnum

from supervisor_tasks.job import ChainStatus


class Phase(StrEnum):
    """How far SLURM is with a job."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


# SLURM 22.05, JOB STATE CODES of squeue(1) and sacct(1). A job in COMPLETING has ended, but its end state is not shown yet.
_WAITING = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
}
_RUNNING = {"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
_ENDED = {
    "COMPLETED": ChainStatus.FINISHED,
    "FAILED": ChainStatus.FAILED,
    "TIMEOUT": ChainStatus.OUT_OF_CREDITS,
    "CANCELLED": ChainStatus.CANCELLED,
    "BOOT_FAIL": ChainStatus.FAILED,
    "DEADLINE": ChainStatus.FAILED,
    "NODE_FAIL": ChainStatus.FAILED,
    "OUT_OF_MEMORY": ChainStatus.FAILED,
    "PREEMPTED": ChainStatus.FAILED,
    "REVOKED": ChainStatus.FAILED,
}


def phase(state: str) -> Phase:
    """The phase of a state; a state that we have never heard of is unknown, never success."""
    if state in _ENDED:
        return Phase.ENDED
    if state in _RUNNING:
        return Phase.RUNNING
    return Phase.WAITING if state in _WAITING else Phase.UNKNOWN


def end_status(state: str) -> ChainStatus:
    """What an end state is called on the contract. Raises KeyError for a state that is none."""
    return _ENDED[state]
