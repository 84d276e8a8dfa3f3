"""One live SLURM job for each job: the oldest stays, and the others are cancelled."""

from collections.abc import Mapping, Sequence
from functools import partial

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import TransientError, UndecidedError
from supervisor_tasks.jobs.model import Address, Job, JobId, SlurmId
from supervisor_tasks.jobs.per_job_results import (
    for_each_job,
    required,
    result_or_error,
)
from supervisor_tasks.jobs.submission_records import first_ages_or_zero, listed_of
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.submit_once import SlurmRecords

log = structlog.get_logger()


def only_submissions(
    context: WorkerContext,
    customer: Address,
    submitted: Mapping[JobId, SlurmId],
    jobs: Mapping[JobId, Job],
) -> dict[JobId, SlurmId | Exception]:
    """Return the id of each job's one SLURM job, after a submission that was not its
    first.

    The customer can read the token of an earlier submission, and can submit the job
    with it until slurmctld has seen the token of this one. The oldest SLURM job stays;
    the others are cancelled. If the search fails now, the sweep makes up for it.
    """
    found = for_each_job(
        submitted,
        lambda: listed_of(context, customer, first_ages_or_zero(context, submitted)),
    )
    return {
        job_id: result_or_error(
            partial(_only_submission, context, jobs[job_id], slurm_id, found[job_id])
        )
        for job_id, slurm_id in submitted.items()
    }


def _only_submission(
    context: WorkerContext,
    job: Job,
    slurm_id: SlurmId,
    records: SlurmRecords | Exception,
) -> SlurmId:
    try:
        accepted = required(records).accepted
        cancel_extras(context, job, accepted[1:])
    except (TransientError, UndecidedError) as error:
        log.warning(
            "extra_submissions_not_searched",
            job_id=job.job_id,
            slurm_id=slurm_id,
            error=str(error),
        )
        return slurm_id
    if not accepted:
        return slurm_id
    return accepted[0].slurm_id


def cancel_extras(
    context: WorkerContext, job: Job, extras: Sequence[JobRecord]
) -> None:
    """Cancel SLURM jobs of a job that has an older one. Raises TransientError when
    SLURM does not answer; a retry helps. Raises SlurmRejectedError when SLURM rejects.
    """
    for extra in extras:
        log.error(
            "extra_submission_cancelled", job_id=job.job_id, slurm_id=extra.slurm_id
        )
        context.slurm.cluster.control.cancel(extra.slurm_id, job.customer)
