"""Checks the form of a callback before the process stores it. Pure."""

import re
from dataclasses import dataclass

NAME = re.compile(r"0x[0-9a-f]{64}")
MAX_ID_FIELD = 2**32 - 1
MAX_DURATION_S = 2**31 - 1
INT32 = range(-(2**31), 2**31)

# JobStatus of supervisor.v1alpha1
UNSPECIFIED, RUNNING, CANCELLED, FINISHED, FAILED, OUT_OF_CREDITS = 0, 4, 6, 7, 8, 9
STORED = {RUNNING, CANCELLED, FINISHED, FAILED, OUT_OF_CREDITS}
NOT_A_PLUGINS = {1: "PENDING", 2: "META_SCHEDULED", 3: "SCHEDULED", 10: "PANICKED"}


class MalformedCallbackError(ValueError):
    """No plugin sends such a callback; the message names what was found and what was
    expected.
    """


@dataclass(frozen=True, slots=True)
class CallbackPayload:
    """A callback that a plugin may have sent. `duration_s` is SLURM's end minus start,
    `exit_code` a raw wait(2) status.
    """

    job_id: str
    slurm_id: int
    status: int
    duration_s: int
    exit_code: int

    @property
    def ignored(self) -> bool:
        """Whether a plugin of another version sent it: CANCELLING, or a status that
        this version does not know.
        """
        return self.status not in STORED


def validate(
    name: str, slurm_id: int, duration_s: int, status: int, exit_code: int
) -> CallbackPayload:
    """Check the fields of a callback and return them as a CallbackPayload. Raises
    MalformedCallbackError; a retry does not help.
    """
    if not NAME.fullmatch(name):
        raise MalformedCallbackError(
            f"name: found {name[:80]!r}; expected 0x and 64 lowercase hex digits"
        )
    if not 1 <= slurm_id <= MAX_ID_FIELD:
        raise MalformedCallbackError(
            f"id: found {slurm_id}; expected a SLURM job id, 1 to {MAX_ID_FIELD}"
        )
    if duration_s > MAX_DURATION_S:
        raise MalformedCallbackError(
            f"duration: found {duration_s}; expected seconds, {MAX_DURATION_S} at most"
        )
    if exit_code not in INT32:
        raise MalformedCallbackError(
            f"exit_code: found {exit_code}; expected a wait(2) status, which has 32 bits"
        )
    if status == UNSPECIFIED:
        raise MalformedCallbackError(
            "status: found JOB_STATUS_UNSPECIFIED; expected RUNNING or an end state"
        )
    if status in NOT_A_PLUGINS:
        raise MalformedCallbackError(
            f"status: found {NOT_A_PLUGINS[status]}; expected RUNNING or an end state"
        )
    return CallbackPayload(name, slurm_id, status, duration_s, exit_code)
