"""Jobs that a node could not start: the node's fault, and not the job's. They are
submitted again a little later.
"""

from collections.abc import Mapping

import structlog

from supervisor_tasks.alarms.alarm_names import MAX_JOBS_IN_ALARM, AlarmName
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.events import LaunchFailed
from supervisor_tasks.jobs.model import ChainStatus, Job, JobId, SlurmId, State
from supervisor_tasks.slurm.job_matching import MatchResult, records_by_job
from supervisor_tasks.slurm.not_started import may_not_have_started

log = structlog.get_logger()

ADVICE = (
    "SLURM has drained the nodes: read slurmd's log there (a Prolog that fails, a SPANK plugin that cannot be loaded?),"
    " then resume them"
)


def launch_failures(
    context: WorkerContext, jobs: Mapping[JobId, Job], matches: dict[JobId, MatchResult]
) -> dict[JobId, LaunchFailed]:
    """The jobs that SLURM shows as ended, and that a node could not start. If SLURM does
    not answer at the moment, the matches of the jobs in question become unclear.
    """
    suspects = dict[SlurmId, JobId]()
    for job_id, seen in records_by_job(matches).items():
        if _only_waited(jobs[job_id]) and may_not_have_started(seen):
            suspects[seen.slurm_id] = job_id
    if not suspects:
        return {}
    try:
        nodes = context.slurm.cluster.queries.not_started(suspects.keys())
    except TransientError as error:
        matches |= dict.fromkeys(suspects.values(), MatchResult(unclear=str(error)))
        return {}
    return {
        suspects[slurm_id]: LaunchFailed(slurm_id, node)
        for slurm_id, node in nodes.items()
    }


def _only_waited(job: Job) -> bool:
    """Whether no look has seen the job run, and the contract does not show a run
    either.
    """
    return (job.state, job.chain_status) == (State.QUEUED, ChainStatus.SCHEDULED)


def raise_jobs_not_started_alarm(
    context: WorkerContext, failed: Mapping[JobId, LaunchFailed]
) -> None:
    """Raise the alarm about the nodes of these jobs. Raises LedgerUnavailableError,
    when the database does not answer; a retry helps.
    """
    if not failed:
        return
    for job_id, event in failed.items():
        log.error(
            "job_not_started", job_id=job_id, slurm_id=event.slurm_id, node=event.node
        )
    shown = list(failed.items())[:MAX_JOBS_IN_ALARM]
    jobs = {job_id: event.node for job_id, event in shown}
    context.ledger.alarms.on(AlarmName.JOBS_NOT_STARTED, jobs=jobs, advice=ADVICE)
