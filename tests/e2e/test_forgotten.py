"""SLURM forgets a job before anybody looked, and the site has no accounting: a plausible callback is believed. (Sites with
accounting: test_ends_accounted.py.)
"""

from collections.abc import Iterator

import pytest

from devgrid.chain import Account
from devgrid.grid import Grid
from devgrid.process import wait_until
from supervisor_tasks.job import ChainStatus
from tests.watching import rows, slurm_of, wait_for, wait_for_end

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


def test_job_forgotten_by_slurmctld__ends_with_its_true_figures(grid: Grid, customer: Account) -> None:
    job_id = grid.submit_script(customer, "#!/bin/bash\nsleep 4\nexit 5\n")
    wait_for(grid, job_id, {ChainStatus.RUNNING})
    grid.processes.kill(grid.fleet.find("worker"))

    def callbacks() -> int:
        counted: int = rows(grid, "SELECT count(*) AS n FROM callbacks WHERE job_id = :id", id=job_id)[0].n
        return counted

    wait_until(lambda: callbacks() == 2, "both callbacks", 30.0, 0.1)
    slurm = slurm_of(grid)
    shown = ["squeue", "--noheader", "--states=all", f"--name={job_id}"]
    wait_until(lambda: not slurm.run(*shown).stdout, "slurmctld to forget the job", PURGED_WITHIN_S, 1.0)
    grid.fleet.start_worker()
    job = wait_for_end(grid, job_id)
    assert (job.status, job.exit_code, job.final_cost_wei) == (ChainStatus.FAILED, 5 * 256, 0)
    row = rows(grid, "SELECT elapsed_s, exit_status FROM jobs WHERE job_id = :id", id=job_id)[0]
    assert row.exit_status == 5 * 256
    assert row.elapsed_s in (4, 5)
    assert "callback_believed" in (grid.folder / "log" / "worker.log").read_text()
