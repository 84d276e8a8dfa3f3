"""Collects the jobs to which a task does something (an event, the end of an effect, a transaction), so that it can say so."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from supervisor_tasks.jobs.model import Job, JobId

Changed = dict[JobId, Job]

_collected: ContextVar[Changed | None] = ContextVar("changed_jobs", default=None)


@contextmanager
def collecting() -> Iterator[Changed]:
    """Inside this context, the jobs that this thread records with news are in the result, as they were last."""
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
