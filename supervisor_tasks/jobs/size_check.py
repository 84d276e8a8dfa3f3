"""Whether SLURM gives jobs more than was paid for. Each look checks this with what
squeue showed, or with what accounting shows of jobs and runs that slurmctld has
forgotten.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import structlog

from supervisor_tasks.alarms.alarm_names import MAX_JOBS_IN_ALARM, AlarmName
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import SupervisorError
from supervisor_tasks.jobs.effect_timing import MAX_POLL_S
from supervisor_tasks.jobs.events import MoreThanPaid
from supervisor_tasks.jobs.model import Job, JobId, SlurmId
from supervisor_tasks.jobs.paid_size import Paid, paid_for
from supervisor_tasks.jobs.size_rules import (
    ROUNDED_UP,
    TIME_LIMIT,
    Excess,
    as_asked,
    excesses,
    excesses_except,
    excesses_to_undo,
    may_be_rounded,
)
from supervisor_tasks.ledger.conditions import Condition
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.slurm.job_matching import MatchResult, records_by_job
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.size import Size

log = structlog.get_logger()

MAX_ERROR_CHARS = 300
UNANSWERED_FOR_S = 300.0
# A job that runs for long is looked at every MAX_POLL_S. Failures that are farther apart
# do not make up one outage.
FAILURES_APART_S = 2 * MAX_POLL_S + 60.0
UNANSWERED_ADVICE = "try `squeue --json` and `scontrol show config` on the login node as SLURM_SSH_ADMIN_USER"
ADVICE = "their owners changed them in SLURM: they were cancelled, or had ended; plugins/job_submit.lua prevents that"


Answer = TypeVar("Answer")
Live = tuple[Job, JobRecord, Size]


def oversized(
    context: WorkerContext,
    jobs: Mapping[JobId, Job],
    matches: Mapping[JobId, MatchResult],
) -> list[JobChange]:
    """The changes to record for jobs that have more than was paid for. SLURM is asked a
    second time only if its own rounding may explain what it shows. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    found = dict[JobId, list[Excess]]()
    doubted = list[Live]()
    for job, seen, size in _live(jobs, matches):
        excess = excesses(size, _paid(context, job, seen))
        if may_be_rounded(excess):
            doubted.append((job, seen, size))
        else:
            found.setdefault(job.job_id, []).extend(excess)
    if doubted:
        for job_id, unrounded in _without_rounding(context, doubted).items():
            found.setdefault(job_id, []).extend(unrounded)
    records = records_by_job(matches)
    changes = list[JobChange]()
    for job_id, excess_of_job in found.items():
        consequential = _with_consequences(records[job_id], excess_of_job)
        if consequential:
            changes.append(_change(jobs[job_id], records[job_id], consequential))
    return changes


def raise_more_than_paid_alarm(
    context: WorkerContext,
    changes: Iterable[JobChange],
    before: Mapping[JobId, Job],
    after: Mapping[JobId, Job],
) -> None:
    """Raise the alarm about the jobs that these changes stop. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    stopped = dict[JobId, str]()
    for change in changes:
        if not isinstance(change.event, MoreThanPaid):
            continue
        job = after[change.job_id]
        if job.stop is None or before[job.job_id].stop is not None:
            continue
        log.error(
            "more_than_paid",
            job_id=job.job_id,
            slurm_id=job.slurm_id,
            customer=job.customer,
            stop=job.stop,
        )
        stopped[job.job_id] = f"{job.customer}: {job.stop.reason}"
    if stopped:
        jobs = dict(list(stopped.items())[:MAX_JOBS_IN_ALARM])
        context.ledger.alarms.on(AlarmName.MORE_THAN_PAID, jobs=jobs, advice=ADVICE)


def _live(
    jobs: Mapping[JobId, Job], matches: Mapping[JobId, MatchResult]
) -> list[Live]:
    """The jobs to compare: SLURM shows a size, and the supervisor does not stop them
    already. Of an ended job, each size that accounting shows of an earlier run, too.
    """
    live = list[Live]()
    for job_id, seen in records_by_job(matches).items():
        job = jobs[job_id]
        if job.stop is not None:
            continue
        if seen.phase is Phase.ENDED:
            live += [(job, seen, size) for size in seen.earlier_sizes]
        if seen.size is not None and _has_a_size(seen, seen.size):
            live.append((job, seen, seen.size))
    return live


def _has_a_size(seen: JobRecord, size: Size) -> bool:
    """Whether SLURM gives or gave the job anything. A job that ended before it began
    got nothing. A job that only accounting shows as running is in doubt.
    """
    if seen.phase is Phase.ENDED:
        return seen.elapsed_s > 0
    return not size.accounted and seen.phase in (Phase.WAITING, Phase.RUNNING)


def _paid(context: WorkerContext, job: Job, seen: JobRecord) -> Paid:
    settings = context.slurm.cluster.settings
    paid = paid_for(job, settings.partition, compares_sizes=settings.compares_sizes)
    if job.runs or seen.site is None:
        return paid
    return replace(
        paid, account=seen.site.account, qos=seen.site.qos, threads=seen.site.threads
    )


def _without_rounding(
    context: WorkerContext, doubted: Sequence[Live]
) -> dict[JobId, list[Excess]]:
    """What is left of each excess after a comparison with what the job asked for, and
    with the site's MaxMemPerCPU.

    While SLURM does not answer these questions, only sizes that it never rounds count.
    The check of a waiting job does not depend on SLURM's answer about running jobs.
    """
    running = {
        seen.slurm_id
        for _, seen, size in doubted
        if not _is_what_was_asked_for(seen, size)
    }
    cluster = context.slurm.cluster
    unanswered = dict[str, str]()
    limit = _answer_or_none(
        "the site's MaxMemPerCPU", cluster.site.memory_per_cpu_limit, unanswered
    )
    requests: Mapping[SlurmId, Size] = {}
    if running:
        asked = _answer_or_none(
            "what was asked for", lambda: cluster.queries.requests(running), unanswered
        )
        if asked is not None:
            (requests,) = asked
    _update_unanswered_alarm(context.ledger, unanswered, len(doubted))
    found = dict[JobId, list[Excess]]()
    for job, seen, size in doubted:
        request = requests.get(seen.slurm_id)
        if _is_what_was_asked_for(seen, size):
            request = size
        if limit is None or request is None:
            excess = excesses_except(
                excesses(size, _paid(context, job, seen)), *ROUNDED_UP
            )
        else:
            paid = replace(_paid(context, job, seen), most_memory_per_cpu_mb=limit[0])
            excess = list(excesses(as_asked(size, request, paid), paid))
        found.setdefault(job.job_id, []).extend(excess)
    return found


def _is_what_was_asked_for(seen: JobRecord, size: Size) -> bool:
    return seen.is_pending or size.accounted


def _answer_or_none(
    what: str, ask: Callable[[], Answer], unanswered: dict[str, str]
) -> tuple[Answer] | None:
    """SLURM's answer; None if there is none, with the reason in `unanswered`. So a
    question without an answer does not stop the look at other jobs.
    """
    try:
        return (ask(),)
    except SupervisorError as error:
        unanswered[what] = str(error)[:MAX_ERROR_CHARS]
        return None


def _update_unanswered_alarm(
    ledger: Ledger, unanswered: Mapping[str, str], jobs: int
) -> None:
    """Raise the alarm when SLURM gives no answer for minutes, and end it when it does:
    meanwhile a job can have more than was paid for. Time without a doubted job counts
    only between two failures that are at most FAILURES_APART_S apart.
    """
    if unanswered:
        log.warning("sizes_not_compared", unknown=unanswered, jobs=jobs)
    condition = Condition(
        ledger,
        AlarmName.SIZES_NOT_COMPARED,
        UNANSWERED_FOR_S,
        gap_s=FAILURES_APART_S,
    )
    condition.update(
        bool(unanswered), unknown=unanswered, jobs=jobs, advice=UNANSWERED_ADVICE
    )


def _with_consequences(seen: JobRecord, found: Sequence[Excess]) -> list[Excess]:
    """The excesses that have consequences. For an ended job, the time limit has none:
    its time is billed as it is.
    """
    to_undo = excesses_to_undo(found, waits=seen.is_pending)
    if seen.phase is Phase.ENDED:
        return excesses_except(to_undo, TIME_LIMIT)
    return to_undo


def _change(job: Job, seen: JobRecord, found: Sequence[Excess]) -> JobChange:
    what = "; ".join(dict.fromkeys(map(str, found)))
    limit_only = all(excess.of == TIME_LIMIT for excess in found)
    event = MoreThanPaid(
        what, limit_only, waits=seen.is_pending, ended=seen.phase is Phase.ENDED
    )
    return JobChange(job.job_id, event)
