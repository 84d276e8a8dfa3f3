"""Whatever happens to the connection, one job on chain is one job in SLURM; with a real sshd and SLURM behind a bad network."""

import random
from collections.abc import Iterator

import pytest

from devgrid.proxy import Fault, Proxy, Way
from supervisor_tasks.job import JobId, State
from supervisor_tasks.site import Site
from tests.submitting import CUSTOMER, World

LONG = "#!/bin/bash\nsleep 600\n" + "# é \" ' $x `y` \\ !z %s\n" * 8000  # 200 kB: goes in several pieces


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World.running() as world:
        yield world


@pytest.fixture
def proxy(world: World) -> Iterator[Proxy]:
    with Proxy.start(world.sshd.address) as proxy:
        yield proxy


@pytest.fixture
def site(world: World, proxy: Proxy) -> Iterator[Site]:
    """A worker behind the proxy, with a connection that stands already."""
    site = world.site(world.cluster(proxy.address))
    site.slurm.cluster.clock(CUSTOMER)
    site.slurm.cluster.clock(site.slurm.cluster.admin)
    yield site
    site.slurm.cluster.ssh.close()
    site.ledger.holder.close()


@pytest.fixture(autouse=True)
def _room_for_the_next(world: World) -> Iterator[None]:
    yield
    world.slurm.run("scancel", f"--user={CUSTOMER}")


def assert_submitted_once(world: World, site: Site, job: JobId, script: str = LONG) -> int:
    found = world.until_queued(site, job)
    assert world.in_slurm(job) == [found.slurm_id]
    assert found.slurm_id is not None
    interpreter, _, body = script.partition("\n")
    assert world.script(found.slurm_id) == f"{interpreter}\n# supervisor job {job}\ntrue\n{body}"
    return found.slurm_id


def test_no_fault__is_submitted_at_once(world: World, site: Site, proxy: Proxy) -> None:
    job = world.new_job(site, LONG)
    assert world.carry_out(site, job).state is State.QUEUED
    assert world.journal(job) == ["Claimed", "ScriptFetched", "SubmitStarted", "Submitted"]
    assert_submitted_once(world, site, job)


SEEDED = random.Random(22_05)
THERE = [0, 1, 60, 400, 900, 1500, 100_000, 199_000, *(SEEDED.randrange(200_000) for _ in range(3))]
BACK = [0, 1, 40, 100, 150, 250, SEEDED.randrange(300)]


@pytest.mark.parametrize(("way", "at"), [*((Way.THERE, at) for at in THERE), *((Way.BACK, at) for at in BACK)])
def test_connection_cut_at_a_byte__one_job_and_its_whole_script(
    world: World, site: Site, proxy: Proxy, way: Way, at: int
) -> None:
    job = world.new_job(site, LONG)
    proxy.at(way, at, Fault.CUT)
    world.carry_out(site, job)
    assert_submitted_once(world, site, job)


def test_answer_lost__what_slurm_has_is_adopted(world: World, site: Site, proxy: Proxy) -> None:
    job = world.new_job(site, LONG)
    proxy.at(Way.BACK, 200, Fault.LOSE_BACK)
    world.carry_out(site, job)
    assert len(world.in_slurm(job)) == 1
    proxy.fault(Fault.CUT)
    assert_submitted_once(world, site, job)
    assert world.journal(job).count("SubmitStarted") == 1
