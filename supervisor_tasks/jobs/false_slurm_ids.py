"""Ids in sbatch's answer that SLURM never gave to the job.

The answer comes through the customer's own login. A start-up file can print any id in
sbatch's place, also that of another customer's job. So an id is believed only when a
look has identified the job under it. If slurmctld does not know the job under that id,
and cannot have forgotten a job that it took, the job does not have that id.
"""

from collections.abc import Mapping

import structlog

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.errors import TransientError
from supervisor_tasks.jobs.events import FalseSlurmId, SubmitStarted
from supervisor_tasks.jobs.model import Job, JobId, SlurmId, State
from supervisor_tasks.jobs.runs import CLOCKS_APART_S
from supervisor_tasks.slurm.job_matching import MatchResult

log = structlog.get_logger()


def must_know(begun_ago_s: float, runs_for_s: float, remembers_s: float) -> bool:
    """Whether slurmctld must know every job whose submission began `begun_ago_s` ago or
    later. It has run for `runs_for_s`, and remembers ended jobs for `remembers_s` (0:
    for ever). Pure.
    """
    begun_max_ago_s = begun_ago_s + CLOCKS_APART_S
    if begun_max_ago_s >= runs_for_s:
        return False
    return remembers_s == 0 or begun_max_ago_s < remembers_s


def false_ids(
    context: WorkerContext, jobs: Mapping[JobId, Job], matches: dict[JobId, MatchResult]
) -> dict[JobId, FalseSlurmId]:
    """The jobs that SLURM does not have under the ids in sbatch's answers. If slurmctld
    does not answer at the moment, the matches of these jobs become unclear. Raises
    LedgerUnavailableError, when the database does not answer; a retry helps.
    """
    # sbatch answered with an id, and no look has shown the job since
    unseen = dict[JobId, SlurmId]()
    for job_id, job in jobs.items():
        if job.state is not State.QUEUED or job.slurm_id is None:
            continue
        if job.slurm_submit_s is None and matches[job_id].unknown:
            unseen[job_id] = job.slurm_id
    begun_ago_s = context.ledger.journal.last_ages_s(unseen, SubmitStarted)
    if not begun_ago_s:
        return {}
    try:
        controller = context.slurm.cluster.site.controller()
        now_s = context.slurm.cluster.clock.now_s()
    except TransientError as error:
        matches |= dict.fromkeys(begun_ago_s, MatchResult(unclear=str(error)))
        return {}
    runs_for_s = controller.runs_for_s(now_s)
    found = dict[JobId, FalseSlurmId]()
    for job_id, ago_s in begun_ago_s.items():
        if not must_know(ago_s, runs_for_s, controller.min_job_age_s):
            continue
        customer = jobs[job_id].customer
        slurm_id = unseen[job_id]
        log.error(
            "false_slurm_id",
            job_id=job_id,
            customer=customer,
            slurm_id=slurm_id,
        )
        reason = f"sbatch's answer named SLURM id {slurm_id}, under which SLURM has no such job of {customer}"
        found[job_id] = FalseSlurmId(slurm_id, reason)
    return found
