"""Top up: set the time limit of a job in SLURM, and put a waiting job back to its paid size.

Despite the effect's name this also lowers a limit: after a requeue, and where the owner has raised it.

The limit is absolute, so doing it twice is the same as once. The size is put back if the owner asked for more than was
paid for.
"""

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.events import EffectCompleted, Event, LimitApplied
from supervisor_tasks.jobs.lookup import record_of
from supervisor_tasks.jobs.model import EffectKind, Job, SlurmId
from supervisor_tasks.jobs.paid import paid_for
from supervisor_tasks.jobs.size_rules import TIME_LIMIT, excesses
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import JobRecord, SlurmRejectedError
from supervisor_tasks.slurm.size import Size

log = structlog.get_logger()


def extend_time_limit(context: WorkerContext, job: Job) -> Event:
    """Set the limit to the claimed minutes and all top-ups, less what earlier runs have used.

    The limit of another customer's job that has the id by now is not changed. A requeue lowers the limit; if the owner
    has set an even lower one, that stays. Raises SlurmUnavailableError or SshUnavailableError; a retry helps.
    """
    if job.slurm_id is None:
        return EffectCompleted(EffectKind.TOP_UP)
    seen = record_of(context, job)
    if seen is not None and not _is_lower_already(job, seen):
        context.slurm.cluster.set_time_limit(job.slurm_id, job.run_limit_min)
    waits = seen is not None and seen.phase is Phase.WAITING
    size = seen.size if seen is not None and waits else None
    put_back = size is not None and _put_back(context, job, job.slurm_id, size)
    return LimitApplied(job.run_limit_min, put_back)


def _is_lower_already(job: Job, seen: JobRecord) -> bool:
    lowered = job.applied_limit_min is not None and job.run_limit_min < job.applied_limit_min
    shown_min = None if seen.size is None else seen.size.limit_min
    return lowered and shown_min is not None and shown_min <= job.run_limit_min


def _put_back(context: WorkerContext, job: Job, slurm_id: SlurmId, size: Size) -> bool:
    """Put the job back to its paid size; True if it had more. The next look shows whether the job must be cancelled."""
    cluster = context.slurm.cluster
    paid = paid_for(job, cluster.partition, compares_sizes=cluster.compares_sizes)
    found = [excess for excess in excesses(size, paid) if excess.of != TIME_LIMIT]
    for words in dict.fromkeys(excess.undo for excess in found if excess.undo):
        try:
            cluster.put_back(slurm_id, words)
        except SlurmRejectedError as error:
            log.warning("not_put_back", job_id=job.job_id, slurm_id=slurm_id, words=words, error=str(error))
    if found:
        log.warning("put_back", job_id=job.job_id, slurm_id=slurm_id, found=[str(excess) for excess in found])
    return bool(found)
