"""Collects the jobs that a task changes (by an event, the end of an effect, a
transaction), so that it can log them.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from supervisor_tasks.jobs.model import Job, JobId

Changed = dict[JobId, Job]

_collected: ContextVar[Changed | None] = ContextVar("changed_jobs", default=None)


@contextmanager
def collecting() -> Iterator[Changed]:
    """Inside this context, the jobs that this thread adds are in the result, each as it
    was last.
    """
    changed: Changed = {}
    token = _collected.set(changed)
    try:
        yield changed
    finally:
        _collected.reset(token)


def add(jobs: Iterable[Job]) -> None:
    """Collect jobs; outside of `collecting` it does nothing."""
    changed = _collected.get()
    if changed is not None:
        changed.update((job.job_id, job) for job in jobs)
