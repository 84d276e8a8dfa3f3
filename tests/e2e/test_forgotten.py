"""SLURM forgets a job before anybody looked, and the site has no accounting: a plausible callback is believed. (Sites with
accounting: test_ends_accounted.py.)
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from devgrid.chain import Account
from devgrid.grid import Grid
from devgrid.process import wait_until
from plugins.spool import CANCELLED
from protos.supervisor.v1alpha1.supervisor_pb2 import JOB_STATUS_FAILED, SetJobStatusRequest
from supervisor_tasks.job import ChainStatus
from tests.chaos.liars import tell
from tests.ends import scontrol
from tests.watching import journal, rows, slurm_of, wait_for, wait_for_end

MIN_JOB_AGE_S = 2
PURGED_WITHIN_S = 150.0  # slurmctld looks for old jobs once a minute


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    running = Grid.start(block_time_s=0.25, min_job_age_s=MIN_JOB_AGE_S)
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def customer(grid: Grid) -> Account:
    return grid.new_customer()


def called(grid: Grid, job_id: str) -> list[Any]:
    return rows(grid, "SELECT status, duration_s, slurm_id FROM callbacks WHERE job_id = :id ORDER BY id", id=job_id)


def test_jobs_forgotten_by_slurmctld__end_with_their_true_figures_unless_these_are_disputed(
    grid: Grid, customer: Account
) -> None:
    slurm, gate = slurm_of(grid), grid.users.home(customer.address) / "resumed"
    suspended = grid.submit_script(customer, f"#!/bin/bash\nuntil [ -e ~/{gate.name} ]; do sleep 0.1; done\n")
    be_seen_suspended(grid, suspended)
    ended = grid.submit_script(customer, "#!/bin/bash\nsleep 12\nexit 5\n")
    disputed = grid.submit_script(customer, "#!/bin/bash\nsleep 12\n")
    for job_id in (ended, disputed):
        wait_for(grid, job_id, {ChainStatus.RUNNING})
    waits = grid.submit_script(customer, "#!/bin/bash\nsleep 600\n", tasks=4, cpusPerTask=8)  # all nodes
    wait_until(lambda: "Recognised" in journal(grid, waits), "the job to wait", 30.0, 0.1)
    grid.processes.kill(grid.fleet.find("worker"))
    gate.touch()
    slurm.run("scancel", f"--name={waits}")
    all_jobs = (ended, disputed, suspended, waits)
    wait_until(lambda: [len(called(grid, job)) for job in all_jobs] == [2, 2, 2, 1], "callbacks", 60.0, 0.1)
    assert [(call.status, call.duration_s) for call in called(grid, waits)] == [(CANCELLED, 0)]
    names = ",".join(all_jobs)
    shown = ["squeue", "--noheader", "--states=all", f"--name={names}"]
    wait_until(lambda: not slurm.run(*shown).stdout, "slurmctld to forget the jobs", PURGED_WITHIN_S, 1.0)
    ran_for_nothing = SetJobStatusRequest(
        name=disputed, id=called(grid, disputed)[0].slurm_id, status=JOB_STATUS_FAILED
    )
    assert tell(grid, [ran_for_nothing]) == {"OK": 1}
    grid.fleet.start_worker()
    job = wait_for_end(grid, ended)
    assert (job.status, job.exit_code, job.final_cost_wei) == (ChainStatus.FAILED, 5 * 256, 0)
    row = rows(grid, "SELECT elapsed_s, exit_status FROM jobs WHERE job_id = :id", id=ended)[0]
    assert row.exit_status == 5 * 256
    assert row.elapsed_s in (12, 13)
    assert "callback_believed" in (grid.folder / "log" / "worker.log").read_text()
    job = wait_for_end(grid, waits)
    assert (job.status, job.final_cost_wei) == (ChainStatus.CANCELLED, 0)
    either = r"FINISHED after 1[23] s, exit status 0; or FAILED after 0 s, exit status 0"
    is_left_to_the_operator(grid, disputed, either)
    is_left_to_the_operator(grid, suspended, r"FINISHED after \d+ s, exit status 0")


def be_seen_suspended(grid: Grid, job_id: str) -> None:
    """The job is suspended until a look has seen that."""
    wait_for(grid, job_id, {ChainStatus.RUNNING})
    slurm_id = str(rows(grid, "SELECT slurm_id FROM jobs WHERE job_id = :id", id=job_id)[0].slurm_id)
    scontrol(grid, "suspend", slurm_id)
    seen = "SELECT 1 FROM events WHERE job_id = :id AND details ->> 'seen' = 'SUSPENDED'"
    wait_until(lambda: bool(rows(grid, seen, id=job_id)), "a look to see it suspended", 120.0, 0.1)
    scontrol(grid, "resume", slurm_id)


def is_left_to_the_operator(grid: Grid, job_id: str, ends: str) -> None:
    evidence = "SELECT evidence FROM effects WHERE job_id = :id AND parked_at IS NOT NULL"
    wait_until(lambda: len(rows(grid, evidence, id=job_id)) == 1, "the job to be parked", 60.0, 0.1)
    assert re.fullmatch(ends, rows(grid, evidence, id=job_id)[0].evidence["ends"])
    assert grid.chain.job(job_id).status is ChainStatus.RUNNING
