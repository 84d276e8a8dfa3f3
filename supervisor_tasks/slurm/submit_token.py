"""The token that proves to slurmctld that the supervisor, and not the customer, submits
a job. Pure.

plugins/supervisor_submit.lua checks it and removes it from the comment. A token is
`NUMBER.EXPIRY.CODE`: the number of this submission of the job, until when slurmctld
takes it (Unix time), and the HMAC-SHA256 of all that the job costs. If a customer reads
one (his start-up file can), he can submit the job that he has paid for, once.
"""

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor_tasks.jobs.effect_timing import CLOCK_SKEW_S
from supervisor_tasks.jobs.model import Definition, JobId

# seconds between the clocks of slurmctld and of the login nodes behind one address
LOGIN_CLOCK_APART_S = 60
VERSION = "supervisor-submit-1"
TOKEN_PATTERN = r" token=\d+\.\d+\.[0-9a-f]{64}"  # noqa: S105  follows a comment, if slurmctld has not removed it


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The content of a token. `number` increases at each submission of the job;
    slurmctld rejects a number that is not higher.
    """

    job_id: JobId
    user: str
    definition: Definition
    limit_min: int
    partition: str
    comment: str
    number: int
    expires_s: int


def with_token(submission: Submission, key: str) -> str:
    """Return the comment followed by the token."""
    code = hmac.new(
        key.encode(), signed_text(submission).encode(), hashlib.sha256
    ).hexdigest()
    return (
        f"{submission.comment} token={submission.number}.{submission.expires_s}.{code}"
    )


def without_token(comment: str) -> str:
    """Return a job's comment without the token that slurmctld may have left in it."""
    return re.sub(rf"{TOKEN_PATTERN}$", "", comment)


def signed_text(submission: Submission) -> str:
    """Return the text that is signed: one value on a line, as slurmctld gives the
    values to the script.
    """
    definition = submission.definition
    values: Sequence[object] = (
        VERSION,
        submission.job_id,
        submission.user.lower(),
        submission.limit_min,
        definition.ntasks,
        definition.cpus_per_task,
        definition.mem_per_cpu_mb,
        definition.gpus,
        submission.partition,
        submission.comment,
        submission.number,
        submission.expires_s,
    )
    return "\n".join(map(str, values))


def expires_s(begun_login_s: int, in_time_s: float, message_timeout_s: float) -> int:
    """Return until when slurmctld must take a submission that began at this time of the
    login node's clock. It covers the time that sbatch may run, the time of its message,
    and the difference of the clocks.
    """
    return begun_login_s + round(in_time_s + message_timeout_s) + LOGIN_CLOCK_APART_S


def usable_s(in_time_s: float, message_timeout_s: float) -> float:
    """Return how many seconds after a submission began slurmctld may still take its
    token. The customer's session may have shown a clock that is ahead, slurmctld's may
    be behind, and both count whole seconds.
    """
    lasts_s = expires_s(0, in_time_s, message_timeout_s)
    return lasts_s + 2 * LOGIN_CLOCK_APART_S + CLOCK_SKEW_S
