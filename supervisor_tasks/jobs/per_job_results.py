"""The result of some work, or its exception in its place: so each job, or each effect,
of a group has its own error.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from supervisor_tasks.jobs.model import JobId

Result = TypeVar("Result")


def result_or_error(work: Callable[[], Result]) -> Result | Exception:
    """Return the result of the work, or its exception."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001  the result for one job or effect; the others go on
        return error


def required(result: Result | Exception) -> Result:
    """Return the result. Raises the exception that is in its place."""
    if isinstance(result, Exception):
        raise result
    return result


def for_each_job(
    job_ids: Collection[JobId], work: Callable[[], Mapping[JobId, Result | Exception]]
) -> dict[JobId, Result | Exception]:
    """Return the result for each of these jobs. If the work fails, its exception is the
    result of each job. Without jobs the work is not done.
    """
    if not job_ids:
        return {}
    results = result_or_error(work)
    if isinstance(results, Exception):
        return dict.fromkeys(job_ids, results)
    return {**results}
