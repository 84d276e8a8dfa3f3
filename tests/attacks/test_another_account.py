"""A customer gives his job another account or QOS than the site's, or requests whole
cores of nodes whose cores have two threads. The supervisor finds that, even if he did
it before the first poll: this site has no job_submit.lua, so accounting has the site's
defaults. If a plugin of the site chooses, its choice stays.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from devgrid.processes import wait_until
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import EffectKind, Job, JobId
from tests.support.effect_batches import carry_out
from tests.support.marks import in_chaos
from tests.support.submission_env import CUSTOMER, PATHS, PATIENCE_S, SubmissionEnv

GIVEN = ("grid", "normal")
OTHERS = ({"Account": "vip"}, {"QOS": "high"}, {"Account": "vip", "QOS": "high"})
SITES_PLUGIN = """\
function slurm_job_submit(job, partitions, uid)
    job.account, job.qos = "vip", "high"
    return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
    return slurm.SUCCESS
end
"""


@pytest.fixture(scope="module")
def submission_env() -> Iterator[SubmissionEnv]:
    enforced = "AccountingStorageEnforce=associations,qos"
    with SubmissionEnv.running(
        enforced, accounting=True, threads_per_core=2
    ) as submission_env:
        for words in (
            ("add", "account", "grid"),
            ("add", "account", "vip"),
            ("add", "qos", "high"),
            ("add", "user", CUSTOMER, "account=grid", "defaultaccount=grid"),
            ("add", "user", CUSTOMER, "account=vip"),
            ("modify", "user", CUSTOMER, "set", "qos=normal,high"),
        ):
            done = submission_env.slurm.run("sacctmgr", "-i", *words)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
        yield submission_env


@pytest.fixture
def site(submission_env: SubmissionEnv) -> Iterator[WorkerContext]:
    site = submission_env.site(
        submission_env.cluster(paths=replace(PATHS, sacct="/usr/bin/sacct"))
    )
    begin(submission_env, "DOWN")
    yield site
    site.slurm.cluster.close()
    site.ledger.holder.close()


def begin(submission_env: SubmissionEnv, state: str = "UP") -> None:
    submission_env.slurm.run(
        "scontrol", "update", "PartitionName=main", f"State={state}"
    )


def submitted(submission_env: SubmissionEnv, site: WorkerContext) -> tuple[JobId, int]:
    """A submitted job that the worker has not polled yet."""
    job_id = submission_env.new_job(site)
    wait_until(
        lambda: submission_env.carry_out(site, job_id).slurm_id is not None,
        "the submission",
        PATIENCE_S,
        0.5,
    )
    slurm_id = site.ledger.jobs([job_id])[job_id].slurm_id
    assert slurm_id is not None
    return job_id, slurm_id


def put_back(submission_env: SubmissionEnv, site: WorkerContext, job_id: JobId) -> Job:
    carry_out(site, submission_env.effect_id(job_id, EffectKind.TOP_UP))
    return submission_env.look(site, job_id)


def has(submission_env: SubmissionEnv, slurm_id: int) -> tuple[str, str]:
    return submission_env.field(slurm_id, "Account"), submission_env.field(
        slurm_id, "QOS"
    )


@pytest.mark.parametrize("change", OTHERS, ids=str)
def test_changed_job__while_it_waits__is_put_back(
    submission_env: SubmissionEnv, site: WorkerContext, change: dict[str, str]
) -> None:
    job_id, slurm_id = submitted(submission_env, site)
    job = submission_env.look(site, job_id)
    assert (has(submission_env, slurm_id), job.put_back) == (GIVEN, 0)
    submission_env.set(slurm_id, **change)
    assert has(submission_env, slurm_id) != GIVEN
    assert submission_env.look(site, job_id).put_back == 0  # not yet
    assert put_back(submission_env, site, job_id).put_back == 1
    assert has(submission_env, slurm_id) == GIVEN


@pytest.mark.parametrize(
    "change", [in_chaos(OTHERS[0]), in_chaos(OTHERS[1]), OTHERS[2]], ids=str
)
def test_changed_job__before_the_first_look__is_put_back(
    submission_env: SubmissionEnv, site: WorkerContext, change: dict[str, str]
) -> None:
    job_id, slurm_id = submitted(submission_env, site)
    submission_env.set(slurm_id, **change)
    submission_env.look(site, job_id)
    assert put_back(submission_env, site, job_id).put_back == 1
    assert has(submission_env, slurm_id) == GIVEN
    for _ in range(2):
        assert submission_env.look(site, job_id).put_back == 1
    assert has(submission_env, slurm_id) == GIVEN


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("QOS", "high", "QOS: high instead of normal"), ("ReqThreads", "1", "CPUs: ")],
)
def test_changed_job__begun_before_the_first_look__is_cancelled(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    name: str,
    value: str,
    reason: str,
) -> None:
    job_id, slurm_id = submitted(submission_env, site)
    submission_env.set(slurm_id, **{name: value})
    begin(submission_env)
    wait_until(
        lambda: submission_env.field(slurm_id, "State") == "RUNNING",
        "the job to begin",
        PATIENCE_S,
    )
    job = submission_env.look(site, job_id)
    assert job.stop is not None
    assert reason in job.stop.reason
    carry_out(site, submission_env.effect_id(job_id, EffectKind.CANCEL))
    wait_until(
        lambda: submission_env.field(slurm_id, "State") == "CANCELLED",
        "the job to be cancelled",
        PATIENCE_S,
    )


@pytest.mark.parametrize("change", OTHERS, ids=str)
def test_changed_job__while_it_runs__slurm_rejects_it(
    submission_env: SubmissionEnv, site: WorkerContext, change: dict[str, str]
) -> None:
    _, slurm_id = submitted(submission_env, site)
    begin(submission_env)
    wait_until(
        lambda: submission_env.field(slurm_id, "State") == "RUNNING",
        "the job to begin",
        PATIENCE_S,
    )
    done = submission_env.try_to_set(slurm_id, **change)
    assert "no longer pending" in done.stderr
    assert has(submission_env, slurm_id) == GIVEN


def test_put_back__site_gives_another_default__the_next_job_keeps_that(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    """The worker has read the customer's defaults before."""
    first, _ = submitted(submission_env, site)
    submission_env.look(site, first)
    for default, qos in (("vip", "high"), GIVEN):
        words = (
            "modify",
            "user",
            CUSTOMER,
            "set",
            f"defaultaccount={default}",
            f"defaultqos={qos}",
        )
        done = submission_env.slurm.run("sacctmgr", "-i", *words)
        assert done.returncode == 0, (done.stdout, done.stderr)
        job_id, slurm_id = submitted(submission_env, site)
        for _ in range(2):
            assert submission_env.look(site, job_id).put_back == 0
        assert has(submission_env, slurm_id) == (default, qos)


def test_put_back__plugin_of_the_site_chooses__leaves_its_choice(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    conf = submission_env.slurm.layout.folder / "slurm.conf"
    (conf.parent / "job_submit.lua").write_text(SITES_PLUGIN)
    before = conf.read_text()
    conf.write_text(f"{before}JobSubmitPlugins=lua\n")
    try:
        start_controller_again(submission_env)
        job_id, slurm_id = submitted(submission_env, site)
        for _ in range(2):
            assert submission_env.look(site, job_id).put_back == 0
        assert has(submission_env, slurm_id) == ("vip", "high")
    finally:
        conf.write_text(before)
        start_controller_again(submission_env)


def start_controller_again(submission_env: SubmissionEnv) -> None:
    submission_env.processes.kill(submission_env.processes.find("slurmctld"))
    submission_env.slurm.start_controller()
