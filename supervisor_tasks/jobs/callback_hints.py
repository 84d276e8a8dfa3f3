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
from supervisor_tasks.ledger.ledger import JobChange

log = structlog.get_logger()

LOG_SAMPLE_SIZE = 3  # callbacks about other jobs than ours in one log line

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
    matches = dict[int, str]()
    hints = dict[JobId, CallbackReceived]()
    unknown = list[CallbackSeen]()
    for callback in callbacks:
        match = _match(slurm_ids, callback)
        matches[callback.id] = match
        if match == UNKNOWN_JOB:
            unknown.append(callback)
        elif match == MATCHED:
            hint = _hint(callback, received[callback.job_id, callback.slurm_id])
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


def _hint(callback: CallbackSeen, received: int) -> CallbackReceived:
    """The event of one callback, when so many came about its job. Callbacks that a
    stranger forges cannot delay the look that a proven callback asks for. At a site
    with a key they do not have the jobs cancelled that are over, either: each would
    take a look at SLURM that other cancellations wait for.
    """
    delay_s = 0.0
    if not callback.proven:
        delay_s = poll_delay_s(received)
    runs = callback.status == RUNNING and callback.is_evidence
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
