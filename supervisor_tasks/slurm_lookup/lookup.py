"""What SLURM shows of jobs of the ledger, matched by more than their ids."""

from collections.abc import Iterable, Mapping

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import Job, JobId, SlurmId
from supervisor_tasks.slurm.job_matching import UNKNOWN, MatchRequest, MatchResult
from supervisor_tasks.slurm.parsers import JobRecord, SlurmUnavailableError
from supervisor_tasks.slurm.squeue import SqueueRow
from supervisor_tasks.slurm_lookup.cluster_check import require_expected_cluster


def look_at(
    context: WorkerContext,
    jobs: Iterable[Job],
    listed: Mapping[SlurmId, SqueueRow] | None = None,
    *,
    accounting: bool = True,
) -> dict[JobId, MatchResult]:
    """SLURM's record of each job, or that SLURM does not know the job, or why that is
    unclear at the moment.

    A job that has no SLURM id is unknown to SLURM. The look asks the ledger once and
    SLURM as often as `JobQueries.look` does, for any number of jobs. Raises
    SlurmUnavailableError, SshUnavailableError or AnotherSlurmError when the look learns
    nothing about any job. A retry helps.
    """
    require_expected_cluster(context)
    jobs = list(jobs)
    given = {job.slurm_id for job in jobs if job.slurm_id is not None}
    submissions = context.ledger.journal.submissions(given)
    wanted = list[MatchRequest]()
    for job in jobs:
        if job.slurm_id is None:
            continue
        submission = submissions.get(job.job_id)
        request = MatchRequest(
            job_id=job.job_id,
            slurm_id=job.slurm_id,
            user=job.customer,
            submit_s=job.slurm_submit_s,
            id_belongs_to_other=submission is not None
            and submission.id_belongs_to_other,
        )
        wanted.append(request)
    matches = dict[JobId, MatchResult]()
    if wanted:
        matches = context.slurm.cluster.queries.look(
            wanted, listed, accounting=accounting
        )
    return {job.job_id: matches.get(job.job_id, UNKNOWN) for job in jobs}


def record_of(context: WorkerContext, job: Job) -> JobRecord | None:
    """slurmctld's record of one job, for a caller that is about to change or cancel the
    job.

    None when slurmctld does not know the job; its id may then belong to another job.
    Raises SlurmUnavailableError or SshUnavailableError, also when the answer is unclear
    at the moment. A retry helps.
    """
    match = look_at(context, [job], accounting=False)[job.job_id]
    if match.unclear:
        raise SlurmUnavailableError(match.unclear)
    return match.record
