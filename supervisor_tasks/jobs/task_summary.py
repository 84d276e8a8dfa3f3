"""What a task did to jobs, in one line that Flower shows and searches: ids, states,
SLURM ids, customers. Pure.

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
    """Return the jobs about which something is new. That a job was looked at once more
    is no news.
    """
    changed = list[Job]()
    for job_id, job in after.items():
        earlier = before.get(job_id)
        if earlier is not None and _without_looks(earlier) == _without_looks(job):
            continue
        changed.append(job)
    return changed


def _without_looks(job: Job) -> Job:
    return replace(job, poll_count=0, runs=(), applied_limit_min=None)


def summary(jobs: Iterable[Job]) -> str | None:
    """Return the line, with the jobs that failed first; None if there is no job."""
    failed_first = sorted(jobs, key=lambda job: not has_failed(job))
    if not failed_first:
        return None
    line = "; ".join(map(_about, failed_first[:MAX_JOBS]))
    rest = len(failed_first) - MAX_JOBS
    if rest <= 0:
        return line
    return f"{line}; and {rest} more"


def has_failed(job: Job) -> bool:
    """Return whether the job's end is a failure."""
    return job.outcome is not None and job.outcome.status in FAILURES


def _about(job: Job) -> str:
    words = [*_state_words(job), job.job_id]
    if job.slurm_id is not None:
        words.append(f"slurm:{job.slurm_id}")
    words.append(f"customer:{job.customer}")
    return " ".join(words)


def _state_words(job: Job) -> list[str]:
    if job.outcome is None:
        return [job.state.value]
    status = job.outcome.status
    if status is ChainStatus.FAILED:
        return [JOB_FAILED]
    if status in FAILURES:
        return [JOB_FAILED, f"({status.name})"]
    return [job.state.value, status.name]
