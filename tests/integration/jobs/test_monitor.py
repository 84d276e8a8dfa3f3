"""Workers that look at jobs side by side: real sshd, SLURM and Postgres, and a network
that stands still for one of them.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from devgrid.faults.network_proxy import Fault, Proxy
from devgrid.machine import deadline
from devgrid.processes import wait_until
from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.model import JobId
from supervisor_tasks.jobs.monitor import LOOKS_APART_S, MANY_JOBS, poll_jobs
from supervisor_tasks.ledger.counters import Total
from tests.support.submission_env import SubmissionEnv


@pytest.fixture(scope="module")
def world() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running() as world:
        # Jobs wait: a look at a job that has just begun is made again, and is not
        # counted.
        world.slurm.run(
            "scontrol", "update", "NodeName=ALL", "State=DRAIN", "Reason=test"
        )
        yield world


def test_poll_jobs__another_worker_waits_for_slurm__looks_at_other_jobs(
    world: SubmissionEnv,
) -> None:
    with Proxy.start(world.sshd.address) as proxy, ThreadPoolExecutor(1) as thread:
        behind_proxy, direct = (
            world.site(world.cluster(proxy.address, patience_s=60.0)),
            world.site(world.cluster()),
        )
        first, second = world.new_job(direct), world.new_job(direct)
        for job in (first, second):
            world.until_queued(direct, job)
        world.look(behind_proxy, first)  # its connection stands
        world.postpone_look(second)
        proxy.fault(Fault.HANG)
        waits = thread.submit(world.look, behind_proxy, first)
        try:
            wait_until(
                lambda: leased(world) == [first],
                "the first worker to wait for SLURM",
                deadline(10.0),
                0.02,
            )
            looks = direct.ledger.jobs([second])[second].poll_count
            assert world.look(direct, second).poll_count == looks + 1
            assert (waits.done(), leased(world)) == (False, [first])
            looks = direct.ledger.jobs([first])[first].poll_count
        finally:
            proxy.fault(None)
        assert waits.result(deadline(60.0)).poll_count == looks + 1
        for site in (behind_proxy, direct):
            site.slurm.cluster.close()
            site.ledger.holder.close()


def leased(world: SubmissionEnv) -> list[JobId]:
    with world.engine.connect() as connection:
        query = text(
            "SELECT job_id FROM effects WHERE kind = 'poll_slurm' AND lease IS NOT NULL"
        )
        return list(connection.scalars(query))


def test_poll_jobs__another_worker_has_read_a_callback__is_counted_once(
    world: SubmissionEnv,
) -> None:
    site, other = world.site(world.cluster()), world.site(world.cluster())
    job = world.new_job(site)
    slurm_id = world.until_queued(site, job).slurm_id
    with world.engine.begin() as connection:
        row = {"job": job, "slurm_id": slurm_id}
        connection.execute(text(CALLBACK), row)
    counted = matched(site)
    read_by_other = other.ledger.callbacks.unread()
    poll_jobs(site)
    with world.engine.begin() as connection:
        assert other.ledger.callbacks.mark_read(connection, read_by_other) == []
    assert matched(site) == counted + 1
    for one in (site, other):
        one.slurm.cluster.close()
        one.ledger.holder.close()


CALLBACK = """
    INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer, proof)
    VALUES ('here', :job, :slurm_id, 6, 0, 0, 'a test', 'no key')
    """


def matched(site: WorkerContext) -> int:
    """How many callbacks about our jobs were counted."""
    return int(site.ledger.counters.read().get((Total.CALLBACKS, "matched"), 0))


def test_poll_jobs__has_read_many_callbacks__lets_the_next_ones_gather(
    world: SubmissionEnv,
) -> None:
    site = world.site(world.cluster())
    strangers = [
        {"job": f"0x{number:064x}", "slurm_id": 10**6}
        for number in range(MANY_JOBS + 1)
    ]
    with world.engine.begin() as connection:
        connection.execute(text(CALLBACK), strangers[1:])
    began_s = time.monotonic()
    poll_jobs(site)
    with world.engine.begin() as connection:
        connection.execute(text(CALLBACK), strangers[0])
    poll_jobs(site)
    assert time.monotonic() - began_s >= LOOKS_APART_S
    assert site.ledger.callbacks.unread() == []
    site.slurm.cluster.close()
    site.ledger.holder.close()
