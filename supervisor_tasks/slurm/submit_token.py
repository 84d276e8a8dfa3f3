"""The token by which slurmctld knows that the supervisor submits a job, and not its customer. Pure.

plugins/supervisor_submit.lua checks it and takes it out of the comment. A token is `NUMBER.EXPIRY.CODE`: which submission of
the job it is, until when slurmctld takes it (Unix time), and the HMAC-SHA256 of all that the job costs. A customer who reads
one (his start-up file can) can submit the job that he has paid for, once.
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor_tasks.job import Definition, JobId

CLOCKS_APART_S = 60  # the login node's and slurmctld's
VERSION = "supervisor-submit-1"
SHOWN = r" token=\d+\.\d+\.[0-9a-f]{64}"  # behind a comment, where slurmctld has not taken it out


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What a token covers. `number` is higher at each submission of the job; slurmctld takes none that is not."""

    job_id: JobId
    user: str
    definition: Definition
    limit_min: int
    partition: str
    comment: str
    number: int
    expires_s: int


def with_token(submission: Submission, key: str) -> str:
    """The comment with the token behind it."""
    code = hmac.new(key.encode(), signed_text(submission).encode(), hashlib.sha256).hexdigest()
    return f"{submission.comment} token={submission.number}.{submission.expires_s}.{code}"


def signed_text(submission: Submission) -> str:
    """What is signed: one value on a line, as slurmctld shows them to the script."""
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
    """Until when slurmctld is to take a submission that began at that time of the login node's clock: as long as sbatch may
    run and its message be under way, and clocks differ.
    """
    return begun_login_s + round(in_time_s + message_timeout_s) + CLOCKS_APART_S
