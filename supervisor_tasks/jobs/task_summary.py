"""What a task did to jobs, in one line that Flower shows and searches: ids, states, SLURM ids, customers. Pure.

It contains no text of a customer, of SLURM or of a node.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from supervisor_tasks.jobs.model import ChainStatus, Job, JobId

JOB_FAILED = "job FAILED"
FAILURES = (ChainStatus.FAILED, ChainStatus.PANICKED)
MAX_JOBS = 20  # in a line; a task can take hundreds
MAX_CHARACTERS = 6000  # of a line; one job takes less than 200


def with_news(before: Mapping[JobId, Job], after: Mapping[JobId, Job]) -> list[Job]:
    """Return the jobs about which something is new. That a job was looked at once more is no news."""
    return [job for job_id, job in after.items() if job_id not in before or _new(before[job_id]) != _new(job)]


def _new(job: Job) -> Job:
    return replace(job, poll_count=0, runs=(), applied_limit_min=None)


def summary(jobs: Iterable[Job]) -> str | None:
    """Return the line, with the jobs that failed first; None if there is no job."""
    found = sorted(jobs, key=lambda job: not has_failed(job))
    if not found:
        return None
    line = "; ".join(map(_about, found[:MAX_JOBS]))
    rest = len(found) - MAX_JOBS
    return line if rest <= 0 else f"{line}; and {rest} more"


def has_failed(job: Job) -> bool:
    """Return whether the job's end is a failure."""
    return job.outcome is not None and job.outcome.status in FAILURES


def _about(job: Job) -> str:
    outcome = job.outcome
    words = [job.state.value] if outcome is None else [job.state.value, outcome.status.name]
    if outcome is not None and has_failed(job):
        words = [JOB_FAILED] if outcome.status is ChainStatus.FAILED else [JOB_FAILED, f"({outcome.status.name})"]
    slurm = [] if job.slurm_id is None else [f"slurm:{job.slurm_id}"]
    return " ".join([*words, job.job_id, *slurm, f"customer:{job.customer}"])
