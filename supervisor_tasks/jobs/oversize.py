"""Whether SLURM gives jobs more than was paid for. Each look checks this with what squeue showed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import SupervisorError
from supervisor_tasks.jobs.events import MoreThanPaid
from supervisor_tasks.jobs.model import Job, JobId
from supervisor_tasks.jobs.paid import Paid, paid_for
from supervisor_tasks.jobs.size_rules import (
    ROUNDED_UP,
    TIME_LIMIT,
    Excess,
    as_asked,
    excesses,
    may_be_rounded,
    to_take_back,
)
from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.conditions import Condition
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.slurm.job_matching import MatchResult
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.size import Size

log = structlog.get_logger()

NOT_ASKED_AGAIN = (
    AlarmName.MORE_THAN_PAID,
    AlarmName.RUNS_AFTER_END,
    AlarmName.SIZES_NOT_COMPARED,
    AlarmName.JOBS_NOT_STARTED,
)
QUIET_S = 86400.0  # the alarm ends when no new case was seen for this long
MAX_JOBS_IN_ALARM = 20  # jobs in the alarm
SHOWN_TEXT = 300
UNTOLD_FOR_S = 300.0
UNANSWERED_ADVICE = "try `squeue --json` and `scontrol show config` on the login node as SLURM_SSH_ADMIN_USER"
ADVICE = "their owners changed them in SLURM: they were cancelled, or had ended; plugins/job_submit.lua prevents that"


Answer = TypeVar("Answer")
Live = tuple[Job, JobRecord, Size]


def oversized(context: WorkerContext, jobs: Iterable[Job], sights: Mapping[JobId, MatchResult]) -> list[JobChange]:
    """The changes to record for jobs that have more than was paid for. SLURM is asked a second time only if its own
    rounding may explain what it shows.
    """
    live = [
        (job, seen, seen.size) for job in jobs if (seen := sights[job.job_id].seen) and seen.size and _has_a_size(seen)
    ]
    found = [
        ((job, seen, size), excesses(size, _paid(context, job, seen))) for job, seen, size in live if job.stop is None
    ]
    doubted = [one for one, some in found if may_be_rounded(some)]
    closely = _looked_at_closely(context, doubted) if doubted else {}
    sure = [(job, seen, closely.get(job.job_id, some)) for (job, seen, _), some in found]
    taken = [(job, seen, _taken(seen, some)) for job, seen, some in sure]
    return [_change(job, seen, some) for job, seen, some in taken if some]


def call_operator(
    context: WorkerContext, changes: Iterable[JobChange], before: Mapping[JobId, Job], after: Mapping[JobId, Job]
) -> None:
    """Call the operator for the jobs that these changes stop."""
    told = [change.job_id for change in changes if isinstance(change.event, MoreThanPaid)]
    stopped = [after[job_id] for job_id in told if before[job_id].stop is None and after[job_id].stop is not None]
    for job in stopped:
        log.error("more_than_paid", job_id=job.job_id, slurm_id=job.slurm_id, customer=job.customer, stop=job.stop)
    if stopped:
        jobs = {
            job.job_id: f"{job.customer}: {job.stop.reason if job.stop else ''}" for job in stopped[:MAX_JOBS_IN_ALARM]
        }
        context.ledger.alarms.on(AlarmName.MORE_THAN_PAID, jobs=jobs, advice=ADVICE)


def forget_when_quiet(ledger: Ledger) -> None:
    """End the alarms whose cause was not seen for QUIET_S."""
    for name in NOT_ASKED_AGAIN:
        ledger.alarms.off(name, quiet_s=QUIET_S)


def _has_a_size(seen: JobRecord) -> bool:
    """Whether SLURM gives or gave the job anything. A job that ended before it began got nothing."""
    return seen.phase in (Phase.WAITING, Phase.RUNNING) or (seen.phase is Phase.ENDED and seen.elapsed_s > 0)


def _paid(context: WorkerContext, job: Job, seen: JobRecord) -> Paid:
    cluster = context.slurm.cluster
    paid = paid_for(job, cluster.partition, compares_sizes=cluster.compares_sizes)
    if job.runs or seen.site is None:
        return paid
    return replace(paid, account=seen.site.account, qos=seen.site.qos, threads=seen.site.threads)


def _looked_at_closely(context: WorkerContext, doubted: Sequence[Live]) -> dict[JobId, Sequence[Excess]]:
    """What is left of each excess after a comparison with what the job asked for, and with the site's MaxMemPerCPU.

    While SLURM does not answer these questions, only sizes that it never rounds count. The check of a waiting job does
    not depend on SLURM's answer about running jobs.
    """
    running = {seen.slurm_id for _, seen, _ in doubted if not seen.is_pending}
    cluster = context.slurm.cluster
    unanswered = dict[str, str]()
    limit = _answer_or_none("the site's MaxMemPerCPU", cluster.memory_per_cpu_limit, unanswered)
    asked = _answer_or_none("what was asked for", lambda: cluster.requests(running), unanswered) if running else None
    requests = asked[0] if asked else {}
    _watch_unanswered(context.ledger, unanswered, len(doubted))
    found = dict[JobId, Sequence[Excess]]()
    for job, seen, size in doubted:
        request = size if seen.is_pending else requests.get(seen.slurm_id)
        if limit is None or request is None:
            found[job.job_id] = _never_rounded(excesses(size, _paid(context, job, seen)))
        else:
            paid = replace(_paid(context, job, seen), most_memory_per_cpu_mb=limit[0])
            found[job.job_id] = excesses(as_asked(size, request, paid), paid)
    return found


def _answer_or_none(what: str, ask: Callable[[], Answer], unanswered: dict[str, str]) -> tuple[Answer] | None:
    """SLURM's answer; None if there is none, with the reason in `unanswered`. So a question without an answer does not
    stop the look at other jobs.
    """
    try:
        return (ask(),)
    except SupervisorError as error:
        unanswered[what] = str(error)[:SHOWN_TEXT]
        return None


def _watch_unanswered(ledger: Ledger, unanswered: Mapping[str, str], jobs: int) -> None:
    """Call the operator when SLURM gives no answer for minutes: meanwhile a job can have more than was paid for."""
    if unanswered:
        log.warning("sizes_not_compared", unknown=unanswered, jobs=jobs)
    condition = Condition(ledger, AlarmName.SIZES_NOT_COMPARED, UNTOLD_FOR_S)
    condition.update(bool(unanswered), unknown=unanswered, jobs=jobs, advice=UNANSWERED_ADVICE)


def _taken(seen: JobRecord, found: Sequence[Excess]) -> list[Excess]:
    """The excesses that have consequences. For an ended job, the time limit has none: its time is billed as it is."""
    excess = to_take_back(found, waits=seen.is_pending)
    return [one for one in excess if one.of != TIME_LIMIT] if seen.phase is Phase.ENDED else excess


def _never_rounded(found: Sequence[Excess]) -> list[Excess]:
    return [excess for excess in found if excess.of not in ROUNDED_UP]


def _change(job: Job, seen: JobRecord, found: Sequence[Excess]) -> JobChange:
    what = "; ".join(map(str, found))
    limit_only = all(excess.of == TIME_LIMIT for excess in found)
    event = MoreThanPaid(what, limit_only, waits=seen.is_pending, ended=seen.phase is Phase.ENDED)
    return JobChange(job.job_id, event)
