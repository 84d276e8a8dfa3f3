"""Top up: set the time limit of a job in SLURM, and put a waiting job back to its paid
size.

Despite the effect's name this also lowers a limit: after a requeue, and where the owner
has raised it.

The limit is absolute, so setting it twice has the same result as once. The size is put
back if the owner asked for more than was paid for.
"""

from dataclasses import replace

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.events import EffectCompleted, Event, LimitApplied
from supervisor_tasks.jobs.model import EffectKind, Job, SlurmId
from supervisor_tasks.jobs.paid_size import paid_for
from supervisor_tasks.jobs.size_rules import (
    TIME_LIMIT,
    excesses,
    excesses_except,
    may_be_rounded,
)
from supervisor_tasks.slurm.job_states import Phase
from supervisor_tasks.slurm.parsers import JobRecord, SlurmRejectedError
from supervisor_tasks.slurm.size import Size
from supervisor_tasks.slurm_lookup.lookup import record_of

log = structlog.get_logger()


def extend_time_limit(context: WorkerContext, job: Job) -> Event:
    """Set the limit to the claimed minutes and all top-ups, less what earlier runs have
    used.

    If another customer's job has the id by now, its limit is not changed. A requeue
    lowers the limit; if the owner has set an even lower one, that stays.

    Raises SlurmUnavailableError or SshUnavailableError, when SLURM or the login node
    does not answer; a retry helps. Raises SlurmRejectedError, when SLURM rejects the
    limit, and the job keeps its old one; a retry does not help: the operator looks.
    """
    if job.slurm_id is None:
        return EffectCompleted(EffectKind.TOP_UP)
    seen = record_of(context, job)
    if seen is None:
        return LimitApplied(job.run_limit_min)
    if not _is_lower_already(job, seen):
        context.slurm.cluster.control.set_time_limit(job.slurm_id, job.run_limit_min)
    if seen.phase is not Phase.WAITING or seen.size is None:
        return LimitApplied(job.run_limit_min)
    put_back = _put_back_in_slurm(context, job, job.slurm_id, seen.size)
    return LimitApplied(job.run_limit_min, put_back)


def _is_lower_already(job: Job, seen: JobRecord) -> bool:
    """Whether the limit must be lowered, and SLURM already has this one or a lower
    one.
    """
    if job.applied_limit_min is None or job.run_limit_min >= job.applied_limit_min:
        return False
    if seen.size is None or seen.size.limit_min is None:
        return False
    return seen.size.limit_min <= job.run_limit_min


def _put_back_in_slurm(
    context: WorkerContext, job: Job, slurm_id: SlurmId, size: Size
) -> bool:
    """Put the job back to its paid size; True if it had more. The next look shows
    whether the job must be cancelled.
    """
    cluster = context.slurm.cluster
    settings = cluster.settings
    paid = paid_for(job, settings.partition, compares_sizes=settings.compares_sizes)
    found = excesses_except(excesses(size, paid), TIME_LIMIT)
    if may_be_rounded(found):
        limit_mb = cluster.site.memory_per_cpu_limit()
        paid = replace(paid, most_memory_per_cpu_mb=limit_mb)
        found = excesses_except(excesses(size, paid), TIME_LIMIT)
    if not found:
        return False
    # CPUs and nodes have the same update
    updates = dict.fromkeys(excess.undo for excess in found if excess.undo)
    for words in updates:
        try:
            cluster.control.update_job(slurm_id, words)
        except SlurmRejectedError as error:
            log.warning(
                "size_not_restored",
                job_id=job.job_id,
                slurm_id=slurm_id,
                words=words,
                error=str(error),
            )
    log.warning(
        "size_restored",
        job_id=job.job_id,
        slurm_id=slurm_id,
        found=list(map(str, found)),
    )
    return True
