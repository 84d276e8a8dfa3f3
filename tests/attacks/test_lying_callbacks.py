"""A stranger without the site's key sends callbacks that jobs run, and that they have
ended after a long time: no job ends or is billed by them, even if SLURM has forgotten
the job and no other report of its end has come.

This site has no accounting, and SLURM forgets a job within minutes of its end.
"""

from collections.abc import Iterator

import pytest

from devgrid.chain.model import Account, ChainPrices
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from protos.supervisor.v1alpha1 import supervisor_pb2 as messages
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.callers import stranger
from tests.support.end_states import PATIENCE_S, row_of, running
from tests.support.grid_assertions import journal, rows, slurm_of, wait_for_end
from tests.support.grids import served_grid
from tests.support.ports import report
from tests.support.requeueing import seconds_of_runs

FORGOTTEN_WITHIN_S = 180.0  # slurmctld looks for old jobs once a minute
UNTIL_ENOUGH = "#!/bin/bash\nuntil [ -e ~/enough{number} ]; do sleep 0.1; done\n"
FORGED = (
    {"status": messages.JOB_STATUS_RUNNING, "duration": 7},
    {"status": messages.JOB_STATUS_FINISHED, "duration": 2},  # what can be true
    {"status": messages.JOB_STATUS_FINISHED, "duration": 3_000},
    {"status": messages.JOB_STATUS_FAILED, "duration": 10**9, "exit_code": 256},
    {"status": messages.JOB_STATUS_OUT_OF_CREDITS, "duration": 3_600},
)


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    with served_grid(GridOptions(min_job_age_s=2)) as running_grid:
        yield running_grid


def unread(grid: Grid, job_id: str) -> int:
    query = "SELECT count(*) AS number FROM callbacks WHERE job_id = :id AND read_at IS NULL"
    return int(rows(grid, query, id=job_id)[0].number)


def send_forged(grid: Grid, job_id: str, slurm_id: int) -> None:
    """Send all forged callbacks about a job, and wait until the supervisor has read
    them and polled the job because of them.
    """
    looks = len(journal(grid, job_id))
    with stranger(grid) as channel:
        for forged in FORGED:
            report(channel, job_id, slurm_id, **forged)
    told = "SELECT count(*) AS number FROM callbacks WHERE job_id = :id AND proof = 'unproven'"
    assert rows(grid, told, id=job_id)[0].number == len(FORGED)
    wait_until(
        lambda: unread(grid, job_id) == 0,
        "the forged callbacks to be read",
        PATIENCE_S,
        0.1,
    )
    wait_until(
        lambda: len(journal(grid, job_id)) > looks,
        "a look because of them",
        PATIENCE_S,
        0.1,
    )


def assert_billed_as_slurm_says(grid: Grid, job_id: str, slurm_id: int) -> None:
    job = wait_for_end(grid, job_id, 2 * PATIENCE_S)
    ((state, seconds),) = seconds_of_runs(grid, slurm_id)
    assert (state, job.status) == ("COMPLETED", ChainStatus.FINISHED)
    assert row_of(grid, job_id).elapsed_s == seconds
    assert job.final_cost_wei == seconds // 60 * ChainPrices().of(job.definition)


def test_forged_callbacks__about_a_job_that_runs__end_nothing_and_bill_nothing(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, UNTIL_ENOUGH.format(number=1), minutes=100)
    slurm_id = running(grid, job_id)
    send_forged(grid, job_id, slurm_id)
    assert "SlurmCompleted" not in journal(grid, job_id)
    assert grid.chain.job(job_id).status is ChainStatus.RUNNING
    (grid.users.home(customer.address) / "enough1").touch()
    assert_billed_as_slurm_says(grid, job_id, slurm_id)


def test_forged_callbacks__slurm_forgot_the_job__only_the_reporter_ends_it(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, UNTIL_ENOUGH.format(number=2), minutes=100)
    slurm_id = running(grid, job_id)
    for name in ("reporter", "worker"):
        grid.processes.kill(grid.processes.find(name))
    (grid.users.home(customer.address) / "enough2").touch()
    # SLURM's completion hook keeps it; slurmctld may forget the job before it is asked.
    wait_until(
        lambda: bool(seconds_of_runs(grid, slurm_id)), "the job to end", PATIENCE_S, 0.1
    )
    asked = ("squeue", "--noheader", "--states=all", "--format=%A")
    wait_until(
        lambda: not slurm_of(grid).run(*asked).stdout,
        "slurmctld to forget it",
        FORGOTTEN_WITHIN_S,
        1.0,
    )
    grid.fleet.start_worker()
    send_forged(grid, job_id, slurm_id)
    assert "SlurmCompleted" not in journal(grid, job_id)
    assert not grid.chain.job(job_id).status.is_final
    grid.start_reporter()
    assert_billed_as_slurm_says(grid, job_id, slurm_id)
