"""Cancel: ask SLURM to end the job. The time that it really ran is reported when SLURM
shows its end.

An id alone does not identify the job: after a wrap of the ids, or when slurmctld has
lost its state, another job may have it. The admin could end that job too. So the worker
first checks that SLURM's record is the job's, and scancel gets the user whose job it
may end.
"""

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.events import EffectCompleted, Event
from supervisor_tasks.jobs.find_submission import find, require_settled
from supervisor_tasks.jobs.lookup import record_of
from supervisor_tasks.jobs.model import EffectKind, Job
from supervisor_tasks.monitoring.cluster_guard import require_expected_cluster
from supervisor_tasks.slurm.job_states import Phase


def cancel(context: WorkerContext, job: Job) -> Event:
    """Cancel the SLURM job with the job's id, if it is ours. If the ledger has no id,
    wait until the submission cannot arrive any more, and cancel all SLURM jobs that are
    recognised as the job.

    SLURM must not requeue the job: as long as SLURM remembers an ended or cancelled
    job, its owner could have it run once more. Raises TransientError (a retry helps),
    or UndecidedError (the operator must look).
    """
    if job.slurm_id is None:
        require_expected_cluster(context)
        require_settled(context, job)
        for found in find(context, job):
            context.slurm.cluster.cancel(found.slurm_id, job.customer)
        return EffectCompleted(EffectKind.CANCEL)
    seen = record_of(context, job)
    if seen is None:
        return EffectCompleted(EffectKind.CANCEL)
    if seen.may_requeue:
        if seen.phase is Phase.ENDED:
            context.slurm.cluster.hold_again(job.slurm_id)
        context.slurm.cluster.forbid_requeue(job.slurm_id)
    context.slurm.cluster.cancel(job.slurm_id, job.customer)
    return EffectCompleted(EffectKind.CANCEL)
