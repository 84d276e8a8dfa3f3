"""slurmctld is killed before it has saved a job's end: it has the job as running, and
ends it once more when it notices that no node runs it.
"""

import signal
import time

import pytest

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support import chaos_jobs, faults
from tests.support.grid_assertions import (
    rows,
    slurm_ids,
    slurm_of,
    wait_for,
    wait_for_end,
)

TRIES = 8  # slurmctld saves every few seconds, and the kill must come before that
# longer than a minute of the bill after the job has ended
BELIEVED_RUNNING_S = 70
RUNS_S = 7.0


def state(grid: Grid, slurm_id: int) -> str:
    words = ("--noheader", "--states=all", "-j", str(slurm_id), "--format=%T")
    return slurm_of(grid).run("squeue", *words).stdout.strip()


def job_that_slurm_believes_to_run(grid: Grid, customer: Account) -> str:
    """A job that has ended, and that slurmctld has as running."""
    for _ in range(TRIES):
        job_id = chaos_jobs.finishing(grid, customer, RUNS_S)
        wait_for(grid, job_id, {ChainStatus.RUNNING})
        slurm_id = slurm_id_of(grid, job_id)
        # so that it does not see the end in time
        faults.signal_part(grid, "worker", signal.SIGSTOP)
        wait_for_states(grid, slurm_id, {"COMPLETED"}, every_s=0.01)
        faults.kill(grid, "slurmctld")
        faults.start_again(grid, "slurmctld")
        faults.signal_part(grid, "worker", signal.SIGCONT)
        found = wait_for_states(grid, slurm_id, {"COMPLETED", "RUNNING", "PENDING"})
        if found == "RUNNING":
            return job_id
        wait_for_end(grid, job_id, 180.0)
    raise AssertionError(
        f"slurmctld had saved each of {TRIES} ends before it was killed"
    )


def slurm_id_of(grid: Grid, job_id: str) -> int:
    wait_until(lambda: bool(slurm_ids(grid, job_id)), "an id", 60.0, 0.1)
    (slurm_id,) = slurm_ids(grid, job_id)
    return slurm_id


def wait_for_states(
    grid: Grid, slurm_id: int, states: set[str], every_s: float = 0.1
) -> str:
    wait_until(lambda: state(grid, slurm_id) in states, f"{states}", 60.0, every_s)
    return state(grid, slurm_id)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_end__slurmctld_was_killed_before_it_saved_it__is_billed_as_it_was(
    grid: Grid, customer: Account
) -> None:
    job_id = job_that_slurm_believes_to_run(grid, customer)
    (slurm_id,) = slurm_ids(grid, job_id)
    restarted_s = time.monotonic()
    wait_until(
        lambda: time.monotonic() - restarted_s > BELIEVED_RUNNING_S,
        "time to pass",
        120.0,
        0.5,
    )
    assert state(grid, slurm_id) == "RUNNING"
    faults.have_ended_jobs_noticed(grid)
    assert wait_for_end(grid, job_id, 120.0).status is ChainStatus.FINISHED
    assert state(grid, slurm_id) == "NODE_FAIL"
    (job,) = rows(grid, "SELECT elapsed_s FROM jobs WHERE job_id = :id", id=job_id)
    assert RUNS_S - 1 <= job.elapsed_s <= RUNS_S + 5
