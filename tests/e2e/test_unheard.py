"""A site without accounting, where the field's plugin tells each event once and SLURM soon forgets: one word that is lost costs
time and nothing else.
"""

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from devgrid.chain import Account
from devgrid.grid import Grid
from devgrid.process import wait_until
from supervisor_tasks.job import ChainStatus
from tests.ends import assert_ended, running
from tests.watching import ledger, rows

MIN_JOB_AGE_S = 60
ENDS = "#!/bin/bash\nuntil [ -e ~/gate ]; do sleep 0.1; done\nexit 5\n"
FAR_AHEAD = "SELECT 1 FROM effects WHERE job_id = :id AND kind = 'witness' AND due_at > now() + interval '10 minutes'"


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    grid = Grid.start(block_time_s=0.25, nodes=1, hooks="field", min_job_age_s=MIN_JOB_AGE_S)
    try:
        grid.fleet.start(flower=False)
        yield grid
    finally:
        grid.stop()


@pytest.fixture(scope="module")
def customer(grid: Grid) -> Account:
    return grid.new_customer()


def long_looked_at(grid: Grid, job_id: str) -> None:
    """As if the job had run for hours: the next look is a quarter of an hour away."""
    with ledger(grid) as engine, engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET looks = 16 WHERE job_id = :id"), {"id": job_id})
    wait_until(lambda: bool(rows(grid, FAR_AHEAD, id=job_id)), "the looks to be rare", 90.0, 0.1)


def test_end_of_a_long_job__told_in_vain__is_found_while_slurm_remembers_it(grid: Grid, customer: Account) -> None:
    job_id = grid.submit_script(customer, ENDS)
    running(grid, job_id)
    long_looked_at(grid, job_id)
    asked_for = "SELECT 1 FROM sweeps WHERE report ->> 'why' LIKE '%MinJobAge%'"
    wait_until(lambda: bool(rows(grid, asked_for)), "the sweeps at the start", 60.0, 0.1)  # the next one is the clock's
    grid.processes.kill(grid.processes.find("field-plugin"))
    (grid.users.home(customer.address) / "gate").touch()
    assert_ended(grid, job_id, "FAILED", ChainStatus.FAILED, 5 * 256)
