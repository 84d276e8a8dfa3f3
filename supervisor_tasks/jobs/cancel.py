"""Cancel: ask SLURM to end the job. The time that it really ran is reported when SLURM shows its end.

An id alone does not identify the job: after a wrap of the ids, or when slurmctld has lost its state, another job may
have it. The admin could end that job too. So SLURM's record is recognised first, and scancel gets the user whose job it
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
    """Cancel the SLURM job with the job's id, if it is ours. After an unclear submission, wait until nothing can arrive
    any more, and cancel all SLURM jobs that are recognised as the job.

    SLURM must not requeue the job: as long as SLURM remembers an ended or cancelled job, its owner could have it run
    once more. Raises TransientError (a retry helps), or UndecidedError (the operator must look).
    """
    if job.slurm_id is not None:
        seen = record_of(context, job)
        ids = [job.slurm_id] if seen is not None else []
        if seen is not None and seen.may_requeue:
            if seen.phase is Phase.ENDED:
                context.slurm.cluster.hold_again(job.slurm_id)
            context.slurm.cluster.forbid_requeue(job.slurm_id)
    else:
        require_expected_cluster(context)
        require_settled(context, job)
        ids = [seen.slurm_id for seen in find(context, job)]
    for slurm_id in ids:
        context.slurm.cluster.cancel(slurm_id, job.customer)
    return EffectCompleted(EffectKind.CANCEL)
