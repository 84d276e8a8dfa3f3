"""After a submission that was cut off, so that sbatch's answer is not known: find out
whether SLURM has the jobs, and answer their effects.
"""

from collections.abc import Sequence
from functools import partial

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import PermanentError, TransientError
from supervisor_tasks.jobs.effect_group import EffectOutcome, Group, outcome_of
from supervisor_tasks.jobs.events import (
    Event,
    SubmissionNotFound,
    SubmitRejected,
    SubmitStarted,
    Submitted,
)
from supervisor_tasks.jobs.extra_submissions import cancel_extras
from supervisor_tasks.jobs.model import Job, JobId
from supervisor_tasks.jobs.per_job_results import for_each_job, required
from supervisor_tasks.jobs.submission_records import (
    NOTHING,
    last_ages_or_zero,
    records_of,
    traces_of,
)
from supervisor_tasks.jobs.submission_rules import (
    MAX_UNPARSED_ANSWERS,
    require_submission_window_over,
    require_worth_trying,
)
from supervisor_tasks.ledger.outbox import OpenEffect
from supervisor_tasks.slurm.submit_once import SlurmRecords
from supervisor_tasks.slurm_lookup.cluster_check import require_not_paused


def search_cut_off_submissions(
    group: Group, members: Sequence[tuple[Job, OpenEffect]]
) -> None:
    """Search for the jobs of one customer whose submissions were cut off, and answer
    the effect of each.

    1. The first search is at once: slurmctld, and accounting if slurmctld has nothing.
    2. What SLURM has is adopted; of several jobs the oldest stays, and the others are
       cancelled. What SLURM has rejected is given back.
    3. If there is nothing, a second search comes when nothing that was sent can arrive
       any more. It decides.
    4. If a job that SLURM does not have left a trace outside SLURM, the operator
       decides. Otherwise it is submitted again.

    An error of one job is the outcome of its effect; the search goes on for the others.
    """
    context, customer = group.context, group.customer
    searched = _searchable(group, members)
    ages = last_ages_or_zero(context, [job.job_id for job, _ in searched])
    found = for_each_job(ages, partial(records_of, context, customer, ages))
    # SLURM has nothing of these jobs at the second search
    unknown = dict[JobId, float]()
    for job, _ in searched:
        if job.poll_count > 0 and found[job.job_id] == NOTHING:
            unknown[job.job_id] = ages[job.job_id]
    traces = for_each_job(unknown, partial(traces_of, context, customer, unknown))
    for job, effect in searched:
        work = partial(
            _search_result,
            context,
            job,
            effect,
            found[job.job_id],
            traces.get(job.job_id, []),
        )
        group.record(outcome_of(effect, work))


def _searchable(
    group: Group, members: Sequence[tuple[Job, OpenEffect]]
) -> list[tuple[Job, OpenEffect]]:
    """The members whose search may begin. The effects of the others are answered with
    the error.
    """
    journal = group.context.ledger.journal
    window_s = group.context.slurm.cluster.submissions.window_s
    searchable = list[tuple[Job, OpenEffect]]()
    for job, effect in members:
        if job.poll_count > 0:
            try:
                begun_ago_s = journal.last_ages_s([job.job_id], SubmitStarted)
                require_submission_window_over(begun_ago_s.get(job.job_id), window_s)
            except TransientError as error:
                group.record(EffectOutcome(effect, error=error))
                continue
        searchable.append((job, effect))
    return searchable


def _search_result(
    context: WorkerContext,
    job: Job,
    effect: OpenEffect,
    records: SlurmRecords | Exception,
    traces: list[str] | Exception,
) -> Event:
    """Return what follows from SLURM's records of the job, and from its traces outside
    SLURM.
    """
    found = required(records)
    if found.accepted:
        if found.listed:  # what only accounting has cannot be cancelled
            cancel_extras(context, job, found.accepted[1:])
        return Submitted(found.accepted[0].slurm_id)
    if found.seen:
        return SubmitRejected(
            f"SLURM rejected the job: {found.seen[0].reason}",
            context.slurm.cluster.submissions.token_window_s,
        )
    require_not_paused(context.ledger)  # a SLURM that has lost its state finds nothing
    if job.poll_count == 0:
        return SubmissionNotFound()
    _require_no_trace(context, job, required(traces))
    unparsed = context.ledger.journal.unparsed_answers(job.job_id)
    if len(unparsed) >= MAX_UNPARSED_ANSWERS:
        return SubmitRejected(
            unparsed[-1], context.slurm.cluster.submissions.token_window_s
        )
    require_worth_trying(context.ledger.journal.cut_off(job, effect.id))
    return SubmissionNotFound()


def _require_no_trace(context: WorkerContext, job: Job, traces: Sequence[str]) -> None:
    """Raises PermanentError when the job left a trace outside SLURM.

    SLURM may have forgotten a job that has ended, and a site without accounting then
    has no record of it. A trace is no proof, because any user can make one. But a job
    with a trace is submitted again only when the operator decides so.
    """
    if not traces:
        return
    ago_s = last_ages_or_zero(context, [job.job_id])[job.job_id]
    raise PermanentError(
        f"it is not known whether SLURM had the job: its submission was cut off {ago_s:.0f} s ago, SLURM does not list it any"
        f" more, and {' and '.join(traces)}: `supervisor job settle` ends it, or `supervisor job resubmit` submits it again"
    )
