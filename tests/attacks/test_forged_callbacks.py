"""Callbacks with SLURM ids that SLURM never gave to the job: a job whose submission was
cut off is submitted again, and is not parked because of them. And callbacks about jobs
that are over, which ask for looks at SLURM.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from sqlalchemy import text

from devgrid.processes import wait_until
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.callback_fallback import RUNNING
from supervisor_tasks.jobs.callback_hints import read_callbacks
from supervisor_tasks.jobs.events import ChainStatusObserved, SubmitStarted, Submitted
from supervisor_tasks.jobs.model import ChainStatus, EffectKind, JobId, SlurmId, State
from supervisor_tasks.jobs.monitor import poll_jobs
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.slurm.cluster import Cluster
from supervisor_tasks.slurm.rest import RestCluster
from tests.support.submission_env import PATHS, SubmissionEnv

SAID = (
    "INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer)"
    " VALUES ('here', :id, :slurm_id, :status, 1, 0, '')"
)
ENDED_EARLIER = (
    "UPDATE jobs SET updated_at = now() - make_interval(secs => :ended_ago_s)"
    " WHERE job_id = :id"
)
DAY_S = 86_400.0


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running(accounting=True, rest=True) as submission_env:
        yield submission_env


ALONE, ACCOUNTING, SLURMRESTD = "slurmctld alone", "accounting", "slurmrestd"


@pytest.fixture(params=[ALONE, ACCOUNTING, SLURMRESTD])
def site(
    submission_env: SubmissionEnv, request: pytest.FixtureRequest
) -> Iterator[WorkerContext]:
    clusters: dict[str, Callable[[], Cluster | RestCluster]] = {
        ALONE: lambda: submission_env.cluster(paths=PATHS),
        ACCOUNTING: lambda: submission_env.cluster(
            paths=replace(PATHS, sacct="/usr/bin/sacct")
        ),
        SLURMRESTD: submission_env.rest_cluster,
    }
    site = submission_env.site(clusters[request.param]())
    yield site
    site.slurm.cluster.close()
    site.ledger.holder.close()


def cut_off(submission_env: SubmissionEnv, site: WorkerContext) -> JobId:
    """A job whose worker died before sbatch was called."""
    job_id = submission_env.new_job(site)
    site.ledger.record(JobChange(job_id, SubmitStarted(10)))
    return job_id


def called(submission_env: SubmissionEnv, job_id: JobId, slurm_id: int) -> None:
    """Send three callbacks about the job: a start and two ends."""
    with submission_env.engine.begin() as connection:
        for status in (3, 7, 8):
            connection.execute(
                text(SAID), {"id": job_id, "slurm_id": slurm_id, "status": status}
            )


def next_id(submission_env: SubmissionEnv) -> int:
    """The id of SLURM's next job, which slurmrestd does not show."""
    cluster = submission_env.cluster()
    shown = cluster.site.controller().next_id
    cluster.close()
    return shown


def recognised(submission_env: SubmissionEnv, site: WorkerContext) -> SlurmId:
    """The SLURM id of a job that the worker has polled."""
    job_id = submission_env.new_job(site)
    submission_env.until_queued(site, job_id)

    def seen() -> bool:
        poll_jobs(site)
        return site.ledger.jobs([job_id])[job_id].slurm_submit_s is not None

    wait_until(seen, "the first look", 60.0, 0.1)
    number = site.ledger.jobs([job_id])[job_id].slurm_id
    assert number is not None
    return number


@pytest.mark.parametrize("forged", ["far above", "cannot be", "another job's"])
def test_submission__called_under_an_id_never_given_to_the_job__is_made_again(
    submission_env: SubmissionEnv, site: WorkerContext, forged: str
) -> None:
    number = recognised(submission_env, site)
    job_id = cut_off(submission_env, site)
    ids = {"far above": 60_000_000, "cannot be": 4_000_000_000, "another job's": number}
    called(submission_env, job_id, ids[forged])
    queued = submission_env.until_queued(site, job_id)
    assert submission_env.journal(job_id).count("SubmitStarted") == 2
    assert submission_env.in_slurm(job_id) == [queued.slurm_id]


@pytest.mark.parametrize(  # accounting forgets nothing
    "site", [ALONE, SLURMRESTD], indirect=True
)
def test_submission__called_under_an_id_that_slurm_forgot__is_left_to_the_operator(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    """The callbacks can be true: a job may have run and ended while the supervisor was
    away. Accounting would have it.
    """
    submission_env.processes.kill(submission_env.processes.find("slurmctld"))
    submission_env.slurm.start_controller()
    job_id = cut_off(submission_env, site)
    called(submission_env, job_id, next_id(submission_env))
    wait_until(
        lambda: "a plugin called with" in submission_env.parked(site, job_id),
        "the job to be parked",
        60.0,
        0.1,
    )
    assert site.ledger.jobs([job_id])[job_id].state is State.SUBMITTING


@pytest.mark.parametrize("site", [ALONE], indirect=True)  # SLURM is not asked
@pytest.mark.parametrize(
    ("proof", "ended_ago_s", "is_cancelled"),
    [
        ("unproven", 0.0, False),
        ("proven", 0.0, True),
        ("proven", DAY_S, True),
        ("no key", 0.0, True),
        ("no key", DAY_S, False),
    ],
)
def test_called_to_run_after_its_end__without_the_sites_key__is_not_cancelled(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    proof: str,
    ended_ago_s: float,
    is_cancelled: bool,
) -> None:
    """Anyone can repeat such a callback about all jobs that are over. The sweep finds
    those that SLURM runs again. At a site without a key, it counts while SLURM can
    still remember the job.
    """
    job_id = cut_off(submission_env, site)
    site.ledger.record(
        JobChange(job_id, Submitted(SlurmId(7))),
        JobChange(job_id, ChainStatusObserved(ChainStatus.FINISHED, (900, 0))),
    )
    with submission_env.engine.begin() as connection:
        connection.execute(
            text("UPDATE effects SET done_at = now() WHERE job_id = :id"),
            {"id": job_id},
        )
        connection.execute(
            text(ENDED_EARLIER), {"id": job_id, "ended_ago_s": ended_ago_s}
        )
        runs = {"id": job_id, "slurm_id": 7, "status": RUNNING}
        connection.execute(text(SAID), runs)
        connection.execute(
            text("UPDATE callbacks SET proof = :proof WHERE job_id = :id"),
            {"id": job_id, "proof": proof},
        )
    assert read_callbacks(site) > 0
    assert bool(submission_env.effect_id(job_id, EffectKind.CANCEL)) is is_cancelled
