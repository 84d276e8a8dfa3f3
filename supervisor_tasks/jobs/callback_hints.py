"""Reads the stored callbacks. A callback is only a hint: it makes the monitor look at
its job soon.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import structlog
from sqlalchemy import Connection

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.callback_fallback import RUNNING, poll_delay_s
from supervisor_tasks.jobs.events import CallbackReceived
from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.ledger.callbacks import CallbackSeen
from supervisor_tasks.ledger.counters import Total
from supervisor_tasks.ledger.facts import SLURM_MIN_JOB_AGE
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.slurm.parsers import MIN_JOB_AGE_S

log = structlog.get_logger()

LOG_SAMPLE_SIZE = 3  # callbacks about other jobs than ours in one log line

# A requeued job begins so long after slurmctld would have forgotten it: slurmctld
# forgets once a minute, and lets a requeued job wait for two minutes. One that waits
# for longer is found by a sweep.
BEGINS_LATER_S = 600.0
# also if slurmctld remembers for longer: the sweep finds such jobs
LONGEST_REQUEUE_S = 3600.0

MATCHED = "matched"
UNKNOWN_JOB = "unknown_job"
# the callback came before sbatch's answer; the first look follows that answer in a
# moment
BEFORE_ANSWER = "early"


def read_callbacks(context: WorkerContext) -> int:
    """Make the jobs of unread callbacks due for a look, if they have the SLURM id in
    the callback, and mark the callbacks as read; returns how many these were. A
    callback that two workers read at the same time is counted once, and asks for two
    looks. Raises LedgerUnavailableError, when the database does not answer; a retry
    helps.
    """
    callbacks = context.ledger.callbacks.unread()
    if not callbacks:
        return 0
    slurm_ids = context.ledger.slurm_ids({callback.job_id for callback in callbacks})
    received = context.ledger.callbacks.counts(
        {(callback.job_id, callback.slurm_id) for callback in callbacks}
    )
    long_over = _long_over(context, callbacks)
    matches = dict[int, str]()
    hints = dict[JobId, CallbackReceived]()
    unknown = list[CallbackSeen]()
    for callback in callbacks:
        match = _match(slurm_ids, callback)
        matches[callback.id] = match
        if match == UNKNOWN_JOB:
            unknown.append(callback)
        elif match == MATCHED:
            number = received[callback.job_id, callback.slurm_id]
            hint = _hint(callback, number, callback.job_id in long_over)
            hints[callback.job_id] = _sooner(hints.get(callback.job_id, hint), hint)
    _log_unknown(unknown)

    def mark_read(connection: Connection) -> None:
        marked = context.ledger.callbacks.mark_read(connection, callbacks)
        read = Counter((Total.CALLBACKS, matches[number]) for number in marked)
        context.ledger.counters.add(connection, read)

    changes = [JobChange(job_id, hint) for job_id, hint in hints.items()]
    context.ledger.record(*changes, also=mark_read)
    return len(callbacks)


def _match(slurm_ids: Mapping[JobId, SlurmId | None], callback: CallbackSeen) -> str:
    if callback.job_id not in slurm_ids:
        return UNKNOWN_JOB
    slurm_id = slurm_ids[callback.job_id]
    if slurm_id is None:
        return BEFORE_ANSWER
    if slurm_id != callback.slurm_id:
        return UNKNOWN_JOB
    return MATCHED


def requeue_s(min_job_age_s: int) -> float:
    """For how many seconds after its end a job may begin once more, because its owner
    requeued it: slurmctld remembers an ended job for `min_job_age_s`, 0 means for ever.
    Pure.
    """
    if not min_job_age_s:
        return LONGEST_REQUEUE_S
    return min(min_job_age_s + BEGINS_LATER_S, LONGEST_REQUEUE_S)


def _long_over(context: WorkerContext, callbacks: Sequence[CallbackSeen]) -> set[JobId]:
    """The jobs, out of those that a caller without a proof reported as running, that
    were settled too long ago for a requeue.
    """
    job_ids = set[JobId]()
    for callback in callbacks:
        runs = callback.status == RUNNING and callback.is_evidence
        if runs and not callback.proven:
            job_ids.add(callback.job_id)
    if not job_ids:
        return set()
    min_job_age_s = context.ledger.facts.get_or(SLURM_MIN_JOB_AGE, MIN_JOB_AGE_S)
    return context.ledger.callbacks.settled_for(job_ids, requeue_s(min_job_age_s))


def _hint(callback: CallbackSeen, received: int, long_over: bool) -> CallbackReceived:
    """The event of one callback, when so many came about its job. Callbacks that a
    stranger forges cannot delay the look that a proven callback asks for. Nor can a
    stranger have all jobs cancelled that are over: each takes a look at SLURM that
    other cancellations wait for. At a site with a key none is cancelled by a callback
    without a proof, at a site without one none that was over long ago (`long_over`).
    """
    delay_s = 0.0
    if not callback.proven:
        delay_s = poll_delay_s(received)
    runs = callback.status == RUNNING and callback.is_evidence
    if long_over and not callback.proven:
        runs = False
    return CallbackReceived(delay_s, runs)


def _sooner(one: CallbackReceived, other: CallbackReceived) -> CallbackReceived:
    return CallbackReceived(
        min(one.poll_delay_s, other.poll_delay_s), one.running or other.running
    )


def _log_unknown(callbacks: Sequence[CallbackSeen]) -> None:
    if not callbacks:
        return
    shown = [
        f"{callback.job_id} as {callback.slurm_id}"
        for callback in callbacks[:LOG_SAMPLE_SIZE]
    ]
    log.warning("callbacks_unknown_job", callbacks=len(callbacks), first=shown)
