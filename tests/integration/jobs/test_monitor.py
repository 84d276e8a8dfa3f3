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
def submission_env() -> Iterator[SubmissionEnv]:
    with SubmissionEnv.running() as submission_env:
        # Jobs wait: a look at a job that has just begun is made again, and is not
        # counted.
        submission_env.slurm.run(
            "scontrol", "update", "NodeName=ALL", "State=DRAIN", "Reason=test"
        )
        yield submission_env


def test_poll_jobs__another_worker_waits_for_slurm__looks_at_other_jobs(
    submission_env: SubmissionEnv,
) -> None:
    with (
        Proxy.start(submission_env.sshd.address) as proxy,
        ThreadPoolExecutor(1) as thread,
    ):
        behind_proxy, direct = (
            submission_env.site(submission_env.cluster(proxy.address, patience_s=60.0)),
            submission_env.site(submission_env.cluster()),
        )
        first, second = submission_env.new_job(direct), submission_env.new_job(direct)
        for job in (first, second):
            submission_env.until_queued(direct, job)
        submission_env.look(behind_proxy, first)  # its connection stands
        submission_env.postpone_look(second)
        proxy.fault(Fault.HANG)
        waits = thread.submit(submission_env.look, behind_proxy, first)
        try:
            wait_until(
                lambda: leased(submission_env) == [first],
                "the first worker to wait for SLURM",
                deadline(10.0),
                0.02,
            )
            looks = direct.ledger.jobs([second])[second].poll_count
            assert submission_env.look(direct, second).poll_count == looks + 1
            assert (waits.done(), leased(submission_env)) == (False, [first])
            looks = direct.ledger.jobs([first])[first].poll_count
        finally:
            proxy.fault(None)
        assert waits.result(deadline(60.0)).poll_count == looks + 1
        for site in (behind_proxy, direct):
            site.slurm.cluster.close()
            site.ledger.holder.close()


def leased(submission_env: SubmissionEnv) -> list[JobId]:
    with submission_env.engine.connect() as connection:
        query = text(
            "SELECT job_id FROM effects WHERE kind = 'poll_slurm' AND lease IS NOT NULL"
        )
        return list(connection.scalars(query))


def test_poll_jobs__another_worker_has_read_a_callback__is_counted_once(
    submission_env: SubmissionEnv,
) -> None:
    site, other = (
        submission_env.site(submission_env.cluster()),
        submission_env.site(submission_env.cluster()),
    )
    job = submission_env.new_job(site)
    slurm_id = submission_env.until_queued(site, job).slurm_id
    with submission_env.engine.begin() as connection:
        row = {"job": job, "slurm_id": slurm_id}
        connection.execute(text(CALLBACK), row)
    counted = matched(site)
    read_by_other = other.ledger.callbacks.unread()
    poll_jobs(site)
    with submission_env.engine.begin() as connection:
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
    submission_env: SubmissionEnv,
) -> None:
    site = submission_env.site(submission_env.cluster())
    strangers = [
        {"job": f"0x{number:064x}", "slurm_id": 10**6}
        for number in range(MANY_JOBS + 1)
    ]
    with submission_env.engine.begin() as connection:
        connection.execute(text(CALLBACK), strangers[1:])
    began_s = time.monotonic()
    poll_jobs(site)
    with submission_env.engine.begin() as connection:
        connection.execute(text(CALLBACK), strangers[0])
    poll_jobs(site)
    assert time.monotonic() - began_s >= LOOKS_APART_S
    assert site.ledger.callbacks.unread() == []
    site.slurm.cluster.close()
    site.ledger.holder.close()
