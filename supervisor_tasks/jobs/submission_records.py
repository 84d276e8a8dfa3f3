"""What SLURM, accounting, callbacks and logs show of jobs whose SLURM ids are not known.
One search covers any number of jobs of one customer, with few commands. If the result
for a job cannot be known, an exception is in its place.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from operator import attrgetter

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.events import SubmitRejected, SubmitStarted
from supervisor_tasks.jobs.model import Address, Job, JobId, SlurmId
from supervisor_tasks.jobs.per_job_results import (
    for_each_job,
    required,
    result_or_error,
)
from supervisor_tasks.ledger.journal import Journal
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.submit_once import SlurmRecords
from supervisor_tasks.slurm_lookup.plausible_callbacks import plausible_ids

Ages = Mapping[JobId, float]  # how many seconds ago the submission of each job began

NOTHING = SlurmRecords([], listed=False)


def listed_records(
    context: WorkerContext, job: Job, first_ago_s: float
) -> list[JobRecord]:
    """Return all SLURM jobs that slurmctld has for a job whose SLURM id is not known;
    the oldest first. The job's first submission began `first_ago_s` ago. Raises
    UndecidedError, and TransientError when slurmctld does not answer (a retry helps).
    """
    found = listed_of(context, job.customer, {job.job_id: first_ago_s})
    return [*required(found[job.job_id]).seen]


def last_ages_or_zero(
    context: WorkerContext, job_ids: Collection[JobId]
) -> dict[JobId, float]:
    """How many seconds ago the last submission of each job began; 0 if the journal has
    no submission of the job.
    """
    begun = context.ledger.journal.ages_s(job_ids, SubmitStarted)
    return {job_id: begun.get(job_id, [0.0])[0] for job_id in job_ids}


def first_ages_or_zero(
    context: WorkerContext, job_ids: Collection[JobId]
) -> dict[JobId, float]:
    """How many seconds ago the first submission of each job began, as
    `last_ages_or_zero`.
    """
    begun = context.ledger.journal.ages_s(job_ids, SubmitStarted)
    return {job_id: begun.get(job_id, [0.0])[-1] for job_id in job_ids}


def records_of(
    context: WorkerContext, customer: Address, ages: Ages
) -> dict[JobId, SlurmRecords | Exception]:
    """What slurmctld has of each job, or if it has nothing, what accounting has. An
    error of accounting is in the place of each job that was searched for there. Raises
    TransientError when slurmctld does not answer; a retry helps.
    """
    found = listed_of(context, customer, ages)
    unlisted = dict[JobId, float]()
    for job_id, records in found.items():
        if records == NOTHING:
            unlisted[job_id] = ages[job_id]
    return found | for_each_job(
        unlisted, partial(_accounted, context, customer, unlisted)
    )


def listed_of(
    context: WorkerContext, customer: Address, ages: Ages
) -> dict[JobId, SlurmRecords | Exception]:
    """What slurmctld has of each job. Raises TransientError when slurmctld does not
    answer; a retry helps.
    """
    found = context.slurm.cluster.search.find(customer, ages, context.ledger.owners)
    return relevant_records(context.ledger.journal, found, listed=True)


def _accounted(
    context: WorkerContext, customer: Address, ages: Ages
) -> dict[JobId, SlurmRecords | Exception]:
    found = context.slurm.cluster.search.sacct_submissions_of(
        dict.fromkeys(ages, customer), ages
    )
    all_found = {job_id: found.get(job_id, []) for job_id in ages}
    return relevant_records(context.ledger.journal, all_found, listed=False)


def relevant_records(
    journal: Journal,
    found: Mapping[JobId, Sequence[JobRecord] | Exception],
    *,
    listed: bool,
) -> dict[JobId, SlurmRecords | Exception]:
    """What SLURM has of each job. SLURM jobs that a node could not start, and those of
    a rejection that the ledger has recorded, are over, and count as nothing.

    A rejection that the ledger has recorded ended its claim, so its record says nothing
    of the present submission, whose answer may still come. If SLURM has rejected that
    one too, the job is submitted once more, and the answer says so.
    """
    failed = journal.failed_launches(found)
    rejected = journal.ages_s(found, SubmitRejected)
    results = dict[JobId, SlurmRecords | Exception]()
    for job_id, seen in found.items():
        if isinstance(seen, Exception):
            results[job_id] = seen
            continue
        records = SlurmRecords(sorted(seen, key=attrgetter("slurm_id")), listed)
        results[job_id] = records.without(
            failed.get(job_id, ()), rejections=job_id in rejected
        )
    return results


def traces_of(
    context: WorkerContext, customer: Address, ages: Ages
) -> dict[JobId, list[str] | Exception]:
    """The traces that each job left outside SLURM since its submission began, in words:
    callbacks and its log. In the place of a job is the error of the look at its log.
    Raises TransientError when the login node does not answer; a retry helps.
    """
    called_ids = dict[JobId, set[int]]()
    for job_id, ago_s in ages.items():
        called_ids[job_id] = {
            row.slurm_id for row in context.ledger.callbacks.of_last(job_id, ago_s)
        }
    plausible = plausible_ids(context, called_ids, ages)
    logs = context.slurm.cluster.logs.log_files(customer, ages)
    return {
        job_id: result_or_error(
            partial(_described, plausible.get(job_id, ()), logs[job_id])
        )
        for job_id in ages
    }


def _described(called_ids: Collection[SlurmId], has_log: bool | Exception) -> list[str]:
    traces = [
        f"a plugin called with SLURM id {slurm_id}" for slurm_id in sorted(called_ids)
    ]
    if required(has_log):
        traces.append("its log was written")
    return traces
