"""Find out whether SLURM has jobs for which the ledger has no SLURM id, and what
follows from that.

A submission can be cut off, so that sbatch's answer is not known. A job can have been
submitted before we gave it back and claimed it again, or by another ledger. One search
covers any number of jobs of one customer, with few commands. If the result for a job
cannot be known, an exception is in its place.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import inf
from operator import attrgetter
from typing import TypeVar

import structlog

from supervisor_tasks.chain.blocks import seconds_since
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import PermanentError, TransientError, UndecidedError
from supervisor_tasks.jobs.effect_group import EffectOutcome, Group, outcome_of
from supervisor_tasks.jobs.events import (
    Event,
    SubmissionNotFound,
    SubmitRejected,
    SubmitStarted,
    Submitted,
)
from supervisor_tasks.jobs.model import Address, ChainStatus, Job, JobId, SlurmId
from supervisor_tasks.ledger.journal import CutOff, Past
from supervisor_tasks.ledger.outbox import OpenEffect
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.submit_once import SlurmRecords, may_arrive
from supervisor_tasks.slurm_lookup.cluster_guard import require_not_paused
from supervisor_tasks.slurm_lookup.plausible_callbacks import plausible_ids

log = structlog.get_logger()

Result = TypeVar("Result")
Ages = Mapping[JobId, float]  # how many seconds ago the submission of each job began

# An answer of sbatch that the parser does not understand is no rejection: the job is
# searched for and submitted again. After this many such answers, if SLURM has nothing
# of the job, it counts as rejected.
MAX_UNPARSED_ANSWERS = 3
# A submission that is cut off is no rejection either. As long as SLURM itself may be the
# cause, the job is submitted again, without a limit (the effect counts as failing
# meanwhile, which raises an alarm). An answer of slurmctld to our questions proves
# nothing: a slow slurmctld lists jobs and takes none. The proof is that SLURM took
# other customers' jobs in the same time. After this many cuts, and when SLURM took jobs
# of more other customers than had a submission cut off, the cause is the job or its
# customer (a start-up file, a script too long for a slow link), and another try would
# end the same way.
MAX_CUT_OFF_TRIES = 5


NOTHING = SlurmRecords([], listed=False)


# --- after a submission that was cut off ----------------------------------------------


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
    """
    context, customer = group.context, group.customer
    searched = _searchable(group, members)
    ages = _ages(context, [job.job_id for job, _ in searched])
    found = _for_each(ages, partial(_records, context, customer, ages))
    # SLURM has nothing of these jobs at the second search
    unknown = dict[JobId, float]()
    for job, _ in searched:
        if job.poll_count > 0 and found[job.job_id] == NOTHING:
            unknown[job.job_id] = ages[job.job_id]
    traces = _for_each(unknown, partial(_traces, context, customer, unknown))
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
    searchable = list[tuple[Job, OpenEffect]]()
    for job, effect in members:
        if job.poll_count > 0:
            try:
                require_submission_window_over(group.context, job)
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
            _cancel_extras(context, job, found.accepted[1:])
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
    ago_s = context.ledger.journal.seconds_since(job.job_id, SubmitStarted) or 0.0
    raise PermanentError(
        f"it is not known whether SLURM had the job: its submission was cut off {ago_s:.0f} s ago, SLURM does not list it any"
        f" more, and {' and '.join(traces)}"
    )


def require_worth_trying(cut_off: CutOff) -> None:
    """Raises PermanentError when the job's submissions are cut off each time, and those
    of other customers are not.
    """
    times = len(cut_off.reasons)
    if times >= MAX_CUT_OFF_TRIES and cut_off.others_accepted > cut_off.others_cut_off:
        raise PermanentError(
            f"its submission was cut off {times} times while SLURM took the jobs of {cut_off.others_accepted} other customers,"
            f" and SLURM has nothing of it; the last time: {cut_off.reasons[-1]}"
        )


def require_submission_window_over(context: WorkerContext, job: Job) -> None:
    """Raises TransientError while a submission that has begun may still arrive. A retry
    helps after seconds.
    """
    ago_s = context.ledger.journal.seconds_since(job.job_id, SubmitStarted)
    if ago_s is not None and may_arrive(
        ago_s, context.slurm.cluster.submissions.window_s
    ):
        raise TransientError(
            f"a submission that began {ago_s:.1f} s ago may still arrive"
        )


# --- before a submission --------------------------------------------------------------


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
        ago_s = outcome(partial(_earlier_age, context, job, past[job.job_id]))
        if isinstance(ago_s, float):
            ages[job.job_id] = ago_s
        else:
            found[job.job_id] = ago_s
    return found | _for_each(
        ages, partial(_submitted_since, context, customer, by_id, past, ages)
    )


def _earlier_age(context: WorkerContext, job: Job, past: Past) -> float | None:
    """How many seconds the search for an earlier submission must go back; None if there
    can be none.
    """
    require_never_ran(job)
    ago_s, submissions = past.earlier_s, context.slurm.cluster.submissions
    if ago_s is not None and may_arrive(ago_s, submissions.window_s):
        raise TransientError(
            f"a submission that began {ago_s:.1f} s ago, before the job was given back, may still arrive"
        )
    if past.unknown_claim is not None:
        rpc = context.sweep.contract_of(job.provider).rpc
        ago_s = max(ago_s or 0.0, seconds_since(rpc, past.unknown_claim))
    if past.first_s is not None and submissions.token_window_s:
        ago_s = max(ago_s or 0.0, past.first_s)
    return ago_s


def _submitted_since(
    context: WorkerContext,
    customer: Address,
    jobs: Mapping[JobId, Job],
    past: Mapping[JobId, Past],
    ages: Ages,
) -> dict[JobId, SlurmId | Exception | None]:
    found = _records(context, customer, ages)
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
        job_id: outcome(
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
            "the job was claimed before, and its log was written: SLURM had it, and has forgotten it; how it ended is not known"
        )
    found = required(records)
    if not found.accepted:
        return None
    if found.listed:  # what only accounting has cannot be cancelled
        _cancel_extras(context, job, found.accepted[1:])
    return found.accepted[0].slurm_id


def require_never_ran(job: Job) -> None:
    """Raises TransientError when the contract shows that the job ran. The ledger was
    then restored from a backup, and the sweep searches for the job in SLURM. A retry
    helps after that sweep.
    """
    if job.chain_status is ChainStatus.RUNNING:
        raise TransientError(
            "the contract shows that the job ran: it is not submitted before a sweep has searched for it"
        )


# --- after a submission that was not the first ----------------------------------------


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
    found = _for_each(
        submitted, lambda: _listed(context, customer, _first_ages(context, submitted))
    )
    return {
        job_id: outcome(
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
        _cancel_extras(context, job, accepted[1:])
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


def _cancel_extras(
    context: WorkerContext, job: Job, extras: Sequence[JobRecord]
) -> None:
    for extra in extras:
        log.error(
            "extra_submission_cancelled", job_id=job.job_id, slurm_id=extra.slurm_id
        )
        context.slurm.cluster.control.cancel(extra.slurm_id, job.customer)


# --- what SLURM has -------------------------------------------------------------------


def listed_records(
    context: WorkerContext, job: Job, first_ago_s: float
) -> list[JobRecord]:
    """Return all SLURM jobs that slurmctld has for a job whose SLURM id is not known;
    the oldest first. The job's first submission began `first_ago_s` ago. Raises
    UndecidedError, and TransientError when slurmctld does not answer (a retry helps).
    """
    found = _listed(context, job.customer, {job.job_id: first_ago_s})
    return [*required(found[job.job_id]).seen]


def _ages(context: WorkerContext, job_ids: Collection[JobId]) -> dict[JobId, float]:
    """How many seconds ago the last submission of each job began; 0 if the journal has
    no submission of the job.
    """
    begun = context.ledger.journal.ages(job_ids, SubmitStarted)
    return {job_id: begun.get(job_id, [0.0])[0] for job_id in job_ids}


def _first_ages(
    context: WorkerContext, job_ids: Collection[JobId]
) -> dict[JobId, float]:
    """How many seconds ago the first submission of each job began, as `_ages`."""
    begun = context.ledger.journal.ages(job_ids, SubmitStarted)
    return {job_id: begun.get(job_id, [0.0])[-1] for job_id in job_ids}


def _records(
    context: WorkerContext, customer: Address, ages: Ages
) -> dict[JobId, SlurmRecords | Exception]:
    """What slurmctld has of each job, or if it has nothing, what accounting has."""
    found = _listed(context, customer, ages)
    unlisted = dict[JobId, float]()
    for job_id, records in found.items():
        if records == NOTHING:
            unlisted[job_id] = ages[job_id]
    return found | _for_each(unlisted, partial(_accounted, context, customer, unlisted))


def _listed(
    context: WorkerContext, customer: Address, ages: Ages
) -> dict[JobId, SlurmRecords | Exception]:
    found = context.slurm.cluster.search.find(customer, ages, context.ledger.owners)
    return _in_slurm(context, found, ages, listed=True)


def _accounted(
    context: WorkerContext, customer: Address, ages: Ages
) -> dict[JobId, SlurmRecords | Exception]:
    found = context.slurm.cluster.search.sacct_submissions_of(
        dict.fromkeys(ages, customer), ages
    )
    all_found = {job_id: found.get(job_id, []) for job_id in ages}
    return _in_slurm(context, all_found, ages, listed=False)


def _in_slurm(
    context: WorkerContext,
    found: Mapping[JobId, Sequence[JobRecord] | Exception],
    ages: Ages,
    *,
    listed: bool,
) -> dict[JobId, SlurmRecords | Exception]:
    """What SLURM has of each job. SLURM jobs that a node could not start, and those of
    a rejection that the ledger has recorded since, are over, and count as nothing.
    """
    failed = context.ledger.journal.failed_launches(found)
    rejected = context.ledger.journal.ages(found, SubmitRejected)
    results = dict[JobId, SlurmRecords | Exception]()
    for job_id, seen in found.items():
        if isinstance(seen, Exception):
            results[job_id] = seen
            continue
        records = SlurmRecords(sorted(seen, key=attrgetter("slurm_id")), listed)
        rejected_ago_s = rejected.get(job_id, [inf])[0]
        results[job_id] = records.without(
            failed.get(job_id, ()), rejections=rejected_ago_s <= ages[job_id]
        )
    return results


def _traces(
    context: WorkerContext, customer: Address, ages: Ages
) -> dict[JobId, list[str] | Exception]:
    """The traces that each job left outside SLURM since its submission began, in words:
    callbacks and its log.
    """
    called_ids = dict[JobId, set[int]]()
    for job_id, ago_s in ages.items():
        called_ids[job_id] = {
            row.slurm_id for row in context.ledger.callbacks.of_last(job_id, ago_s)
        }
    plausible = plausible_ids(context, called_ids, ages)
    logs = context.slurm.cluster.logs.log_files(customer, ages)
    return {
        job_id: outcome(partial(_described, plausible.get(job_id, ()), logs[job_id]))
        for job_id in ages
    }


def _described(called_ids: Collection[SlurmId], has_log: bool | Exception) -> list[str]:
    traces = [
        f"a plugin called with SLURM id {slurm_id}" for slurm_id in sorted(called_ids)
    ]
    if required(has_log):
        traces.append("its log was written")
    return traces


# --- results in which each job has its own error --------------------------------------


def outcome(work: Callable[[], Result]) -> Result | Exception:
    """Return the result of the work, or its exception."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001  the result for one job; the others go on
        return error


def required(result: Result | Exception) -> Result:
    """Return the result. Raises the exception that is in its place."""
    if isinstance(result, Exception):
        raise result
    return result


def _for_each(
    job_ids: Collection[JobId], work: Callable[[], Mapping[JobId, Result | Exception]]
) -> dict[JobId, Result | Exception]:
    """Return the result for each of these jobs. If the work fails, its exception is the
    result of each job. Without jobs the work is not done.
    """
    if not job_ids:
        return {}
    results = outcome(work)
    if isinstance(results, Exception):
        return dict.fromkeys(job_ids, results)
    return {**results}
