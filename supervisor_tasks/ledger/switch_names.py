"""The names of the switches that an operator can set, and which pause is a sweep's.
Pure.
"""

from enum import StrEnum


class Switch(StrEnum):
    """The switches that an operator can set."""

    CLAIMING_PAUSED = "claiming_paused"
    """No new job is claimed; claimed jobs go on."""
    SUBMISSIONS_PAUSED = "submissions_paused"
    """No job is claimed, and none is submitted to SLURM."""
    RETENTION_PAUSED = "retention_paused"
    """No old row is deleted, such as during an audit."""


# the error of an effect that waits for the end of a pause begins like this
PAUSED_ERROR = "submissions are paused ("
# the reason of a pause that a sweep has set begins like this
STATE_LOST = "SLURM does not know"


def is_pause_of_sweep(reason: str | None) -> bool:
    """Whether a sweep has paused submissions with this reason, because SLURM lost its
    state. A sweep ends such a pause, and so does `supervisor cluster accept`; any other
    one is an operator's.
    """
    return reason is not None and reason.startswith(STATE_LOST)
