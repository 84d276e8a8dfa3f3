"""Before a submission: find out whether SLURM has had the jobs already.

A job can have been submitted before we gave it back and claimed it again, by another
ledger, or by the customer.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from supervisor_tasks.chain.blocks import seconds_since
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import PermanentError
from supervisor_tasks.jobs.extra_submissions import cancel_extras
from supervisor_tasks.jobs.model import Address, Job, JobId, SlurmId
from supervisor_tasks.jobs.per_job_results import (
    for_each_job,
    required,
    result_or_error,
)
from supervisor_tasks.jobs.submission_records import Ages, records_of
from supervisor_tasks.jobs.submission_rules import (
    require_never_ran,
    require_submission_window_over,
)
from supervisor_tasks.ledger.journal import Past
from supervisor_tasks.slurm.submit_once import SlurmRecords


def may_be_in_slurm(context: WorkerContext, past: Past) -> bool:
    """Whether SLURM may have the job from before, so that a search must come first."""
    return past.has_earlier_claim or _had_token(context, past)


def earlier_submissions(
    context: WorkerContext,
    customer: Address,
    jobs: Sequence[Job],
    past: Mapping[JobId, Past],
) -> dict[JobId, SlurmId | Exception | None]:
    """Return the SLURM id of an earlier submission of each job; None if there was none.

    There can be one in three cases. We gave the job back after its submission had
    begun: the search goes back to that submission. The ledger does not remember that it
    wrote the last claim: the search goes back to that claim. Or the customer's session
    had a token: its answer that nothing ran may be false, and the search goes back to
    the first submission. In the job's place is PermanentError when SLURM may have had
    the job and has forgotten it, and TransientError while the earlier submission may
    still arrive (a retry helps).
    """
    by_id = {job.job_id: job for job in jobs}
    found = dict[JobId, SlurmId | Exception | None]()
    ages = dict[JobId, float]()
    for job in jobs:
        ago_s = result_or_error(partial(_earlier_age, context, job, past[job.job_id]))
        if isinstance(ago_s, float):
            ages[job.job_id] = ago_s
        else:
            found[job.job_id] = ago_s
    return found | for_each_job(
        ages, partial(_submitted_since, context, customer, by_id, past, ages)
    )


def _earlier_age(context: WorkerContext, job: Job, past: Past) -> float | None:
    """How many seconds the search for an earlier submission must go back; None if there
    can be none.
    """
    require_never_ran(job)
    ago_s, submissions = past.earlier_s, context.slurm.cluster.submissions
    require_submission_window_over(
        ago_s, submissions.window_s, ", before the job was given back,"
    )
    if past.unknown_claim is not None:
        rpc = context.sweep.contract_of(job.provider).rpc
        ago_s = max(ago_s or 0.0, seconds_since(rpc, past.unknown_claim))
    if _had_token(context, past):
        ago_s = max(ago_s or 0.0, past.first_s or 0.0)
    return ago_s


def _had_token(context: WorkerContext, past: Past) -> bool:
    """Whether the customer's session got a token for the job."""
    tokens = context.slurm.cluster.submissions.token_window_s > 0
    return tokens and past.first_s is not None


def _submitted_since(
    context: WorkerContext,
    customer: Address,
    jobs: Mapping[JobId, Job],
    past: Mapping[JobId, Past],
    ages: Ages,
) -> dict[JobId, SlurmId | Exception | None]:
    found = records_of(context, customer, ages)
    # of an earlier claim, or of another ledger; SLURM shows none of these as accepted
    unknown = dict[JobId, float]()
    for job_id, records in found.items():
        if not past[job_id].has_earlier_claim:
            continue
        if isinstance(records, SlurmRecords) and not records.accepted:
            unknown[job_id] = ages[job_id]
    logs: Mapping[JobId, bool | Exception] = {}
    if unknown:
        logs = context.slurm.cluster.logs.log_files(customer, unknown)
    return {
        job_id: result_or_error(
            partial(
                _earlier_id, context, jobs[job_id], records, logs.get(job_id, False)
            )
        )
        for job_id, records in found.items()
    }


def _earlier_id(
    context: WorkerContext,
    job: Job,
    records: SlurmRecords | Exception,
    has_log: bool | Exception,
) -> SlurmId | None:
    """The id of the oldest SLURM job; the others are cancelled."""
    if required(has_log):
        raise PermanentError(
            "the job was claimed before, and its log was written: SLURM had it, and has forgotten it; how it ended is not"
            " known: `supervisor job settle` ends it by your decision"
        )
    found = required(records)
    if not found.accepted:
        return None
    if found.listed:  # what only accounting has cannot be cancelled
        cancel_extras(context, job, found.accepted[1:])
    return found.accepted[0].slurm_id
