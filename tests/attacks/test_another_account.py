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
def world() -> Iterator[SubmissionEnv]:
    enforced = "AccountingStorageEnforce=associations,qos"
    with SubmissionEnv.running(enforced, accounting=True, threads_per_core=2) as world:
        for words in (
            ("add", "account", "grid"),
            ("add", "account", "vip"),
            ("add", "qos", "high"),
            ("add", "user", CUSTOMER, "account=grid", "defaultaccount=grid"),
            ("add", "user", CUSTOMER, "account=vip"),
            ("modify", "user", CUSTOMER, "set", "qos=normal,high"),
        ):
            done = world.slurm.run("sacctmgr", "-i", *words)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
        yield world


@pytest.fixture
def site(world: SubmissionEnv) -> Iterator[WorkerContext]:
    site = world.site(world.cluster(paths=replace(PATHS, sacct="/usr/bin/sacct")))
    begin(world, "DOWN")
    yield site
    site.slurm.cluster.close()
    site.ledger.holder.close()


def begin(world: SubmissionEnv, state: str = "UP") -> None:
    world.slurm.run("scontrol", "update", "PartitionName=main", f"State={state}")


def submitted(world: SubmissionEnv, site: WorkerContext) -> tuple[JobId, int]:
    """A submitted job that the worker has not polled yet."""
    job_id = world.new_job(site)
    wait_until(
        lambda: world.carry_out(site, job_id).slurm_id is not None,
        "the submission",
        PATIENCE_S,
        0.5,
    )
    slurm_id = site.ledger.jobs([job_id])[job_id].slurm_id
    assert slurm_id is not None
    return job_id, slurm_id


def put_back(world: SubmissionEnv, site: WorkerContext, job_id: JobId) -> Job:
    carry_out(site, world.effect_id(job_id, EffectKind.TOP_UP))
    return world.look(site, job_id)


def has(world: SubmissionEnv, slurm_id: int) -> tuple[str, str]:
    return world.field(slurm_id, "Account"), world.field(slurm_id, "QOS")


@pytest.mark.parametrize("change", OTHERS, ids=str)
def test_changed_job__while_it_waits__is_put_back(
    world: SubmissionEnv, site: WorkerContext, change: dict[str, str]
) -> None:
    job_id, slurm_id = submitted(world, site)
    job = world.look(site, job_id)
    assert (has(world, slurm_id), job.put_back) == (GIVEN, 0)
    world.set(slurm_id, **change)
    assert has(world, slurm_id) != GIVEN
    assert world.look(site, job_id).put_back == 0  # not yet
    assert put_back(world, site, job_id).put_back == 1
    assert has(world, slurm_id) == GIVEN


@pytest.mark.parametrize(
    "change", [in_chaos(OTHERS[0]), in_chaos(OTHERS[1]), OTHERS[2]], ids=str
)
def test_changed_job__before_the_first_look__is_put_back(
    world: SubmissionEnv, site: WorkerContext, change: dict[str, str]
) -> None:
    job_id, slurm_id = submitted(world, site)
    world.set(slurm_id, **change)
    world.look(site, job_id)
    assert put_back(world, site, job_id).put_back == 1
    assert has(world, slurm_id) == GIVEN
    for _ in range(2):
        assert world.look(site, job_id).put_back == 1
    assert has(world, slurm_id) == GIVEN


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("QOS", "high", "QOS: high instead of normal"), ("ReqThreads", "1", "CPUs: ")],
)
def test_changed_job__begun_before_the_first_look__is_cancelled(
    world: SubmissionEnv, site: WorkerContext, name: str, value: str, reason: str
) -> None:
    job_id, slurm_id = submitted(world, site)
    world.set(slurm_id, **{name: value})
    begin(world)
    wait_until(
        lambda: world.field(slurm_id, "State") == "RUNNING",
        "the job to begin",
        PATIENCE_S,
    )
    job = world.look(site, job_id)
    assert job.stop is not None
    assert reason in job.stop.reason
    carry_out(site, world.effect_id(job_id, EffectKind.CANCEL))
    wait_until(
        lambda: world.field(slurm_id, "State") == "CANCELLED",
        "the job to be cancelled",
        PATIENCE_S,
    )


def test_put_back__site_gives_another_default__the_next_job_keeps_that(
    world: SubmissionEnv, site: WorkerContext
) -> None:
    """The worker has read the customer's defaults before."""
    first, _ = submitted(world, site)
    world.look(site, first)
    for default, qos in (("vip", "high"), GIVEN):
        words = (
            "modify",
            "user",
            CUSTOMER,
            "set",
            f"defaultaccount={default}",
            f"defaultqos={qos}",
        )
        done = world.slurm.run("sacctmgr", "-i", *words)
        assert done.returncode == 0, (done.stdout, done.stderr)
        job_id, slurm_id = submitted(world, site)
        for _ in range(2):
            assert world.look(site, job_id).put_back == 0
        assert has(world, slurm_id) == (default, qos)


def test_put_back__plugin_of_the_site_chooses__leaves_its_choice(
    world: SubmissionEnv, site: WorkerContext
) -> None:
    conf = world.slurm.layout.folder / "slurm.conf"
    (conf.parent / "job_submit.lua").write_text(SITES_PLUGIN)
    before = conf.read_text()
    conf.write_text(f"{before}JobSubmitPlugins=lua\n")
    try:
        start_controller_again(world)
        job_id, slurm_id = submitted(world, site)
        for _ in range(2):
            assert world.look(site, job_id).put_back == 0
        assert has(world, slurm_id) == ("vip", "high")
    finally:
        conf.write_text(before)
        start_controller_again(world)


def start_controller_again(world: SubmissionEnv) -> None:
    world.processes.kill(world.processes.find("slurmctld"))
    world.slurm.start_controller()
