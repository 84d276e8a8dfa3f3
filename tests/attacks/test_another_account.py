"""A customer gives his waiting job another account or QOS than it had when it was submitted: it is put back. What the site's
own defaults or plugins gave it is not touched.
"""

from collections.abc import Iterator

import pytest

from devgrid.processes import wait_until
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import EffectKind
from tests.support.carrying import carry_out
from tests.support.submitting import CUSTOMER, PATIENCE_S, SubmissionEnv

GIVEN = ("grid", "normal")


@pytest.fixture(scope="module")
def world() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running("AccountingStorageEnforce=associations,qos", accounting=True) as world:
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
    site = world.site(world.cluster())
    world.slurm.run("scontrol", "update", "PartitionName=main", "State=DOWN")  # nothing begins
    yield site
    site.slurm.cluster.close()
    site.ledger.holder.close()


def has(world: SubmissionEnv, slurm_id: int) -> tuple[str, str]:
    return world.field(slurm_id, "Account"), world.field(slurm_id, "QOS")


@pytest.mark.parametrize("change", [{"Account": "vip"}, {"QOS": "high"}, {"Account": "vip", "QOS": "high"}], ids=str)
def test_changed_while_it_waits__is_put_back(world: SubmissionEnv, site: WorkerContext, change: dict[str, str]) -> None:
    job_id = world.new_job(site)
    wait_until(lambda: world.carry_out(site, job_id).slurm_id is not None, "the submission", PATIENCE_S, 0.5)
    job = world.look(site, job_id)
    assert job.slurm_id is not None
    assert (has(world, job.slurm_id), job.put_back) == (GIVEN, 0)
    world.set(job.slurm_id, **change)
    assert has(world, job.slurm_id) != GIVEN
    assert world.look(site, job_id).put_back == 0  # not yet
    carry_out(site, world.effect_id(job_id, EffectKind.TOP_UP))
    assert has(world, job.slurm_id) == GIVEN
    assert world.look(site, job_id).put_back == 1


def test_given_by_the_site__is_no_attack(world: SubmissionEnv, site: WorkerContext) -> None:
    """As by a plugin of the site's own, before the first look."""
    job_id = world.new_job(site)
    wait_until(lambda: world.carry_out(site, job_id).slurm_id is not None, "the submission", PATIENCE_S, 0.5)
    slurm_id = site.ledger.jobs([job_id])[job_id].slurm_id
    assert slurm_id is not None
    world.set(slurm_id, Account="vip", QOS="high")
    for _ in range(2):
        assert world.look(site, job_id).put_back == 0
    assert has(world, slurm_id) == ("vip", "high")
