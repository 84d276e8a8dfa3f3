"""An id that sbatch's answer named, and that SLURM never gave to the job.

The answer comes through the customer's own login: a start-up file can print any id in sbatch's place, also that of another
customer's job. So an id is believed when a look has recognised the job under it. Until then, as long as
slurmctld cannot have forgotten a job that it took, a job that it does not know under that id was not submitted as it.
"""

from collections.abc import Mapping

import structlog

from supervisor_tasks.errors import TransientError
from supervisor_tasks.events import SubmissionDenied, SubmitStarted
from supervisor_tasks.job import Job, JobId, State
from supervisor_tasks.site import Site
from supervisor_tasks.slurm.identity import Sight

log = structlog.get_logger()

CLOCKS_APART_S = 5.0  # of the database, the login node and slurmctld


def must_know(begun_ago_s: float, runs_for_s: float, remembers_s: float) -> bool:
    """Whether a slurmctld that has run for so long, and remembers what has ended for so long (0: for ever), knows every job
    that was submitted then or later. Pure.
    """
    sure_s = begun_ago_s + CLOCKS_APART_S
    return sure_s < runs_for_s and (remembers_s == 0 or sure_s < remembers_s)


def deny(site: Site, jobs: Mapping[JobId, Job], sights: dict[JobId, Sight]) -> dict[JobId, SubmissionDenied]:
    """The jobs that SLURM does not have under the ids which sbatch's answers named. Where that cannot be told at the moment,
    the sight is made unclear.
    """
    unseen = {
        job_id: job
        for job_id, job in jobs.items()
        if job.state is State.QUEUED
        and job.slurm_id is not None
        and job.slurm_submit_s is None
        and sights[job_id].unknown
    }
    begun_ago_s = {job_id: ages[0] for job_id, ages in site.ledger.journal.ages(unseen, SubmitStarted).items()}
    if not begun_ago_s:
        return {}
    try:
        controller, now_s = site.slurm.cluster.controller(), site.slurm.cluster.now_s()
    except TransientError as error:
        sights |= dict.fromkeys(begun_ago_s, Sight(unclear=str(error)))
        return {}
    runs_for_s = now_s - int(controller.booted) if controller.booted.isdecimal() else 0
    known = {job_id for job_id, ago_s in begun_ago_s.items() if must_know(ago_s, runs_for_s, controller.min_job_age_s)}
    for job_id in known:
        job = unseen[job_id]
        log.error("sbatch_named_another_job", job_id=job_id, customer=job.customer, slurm_id=job.slurm_id)
    return {job_id: _denial(unseen[job_id]) for job_id in known}


def _denial(job: Job) -> SubmissionDenied:
    assert job.slurm_id is not None  # noqa: S101  QUEUED, and sbatch's answer named it
    reason = f"sbatch's answer named SLURM id {job.slurm_id}, under which SLURM has no such job of {job.customer}"
    return SubmissionDenied(job.slurm_id, reason)
