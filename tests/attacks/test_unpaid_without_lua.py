"""Without job_submit.lua: alarms report jobs that customers submit themselves, and
tokens that stay in comments.
"""

from collections.abc import Iterator

import pytest

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from devgrid.services.workflow import Resources
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.end_states import own_job, row_of, running, wait_for_state
from tests.support.grid_assertions import rows, slurm_of, wait_for_end
from tests.support.grids import BLOCK_TIME_S

KEY = "0123456789abcdef" * 4  # of a supervisor that takes the plugin to be there


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    started = Grid.start(
        GridOptions(
            block_time_s=BLOCK_TIME_S,
            overrides={"SWEEP_EVERY_S": "2", "SLURM_SUBMIT_KEY": KEY},
            job_submit=False,
            min_job_age_s=15,  # SLURM forgets a job, and the alarm ends
        )
    )
    try:
        started.fleet.start(flower=False)
        yield started
    finally:
        started.stop()


def alarm(grid: Grid, name: str = "foreign_customer_jobs") -> str:
    found = [
        row.details
        for row in rows(grid, "SELECT name, details FROM alarms")
        if row.name == name
    ]
    return str(found[0]) if found else ""


def test_alarm__own_job_of_a_customer__names_user_and_size_until_it_is_gone(
    grid: Grid, customer: Account
) -> None:
    ours = running(grid, grid.submit_script(customer, "#!/bin/bash\nsleep 600\n"))
    foreign = own_job(grid, customer, "sleep 600", "--ntasks=6", "--time=600")
    wait_until(lambda: alarm(grid) != "", "the alarm", 60.0, 0.2)
    for words in (f"'{foreign}'", customer.address, "6 CPUs", "limit 600 minutes"):
        assert words in alarm(grid)
    assert f"'{ours}'" not in alarm(grid)
    slurm_of(grid).run("scancel", str(foreign))
    wait_until(lambda: alarm(grid) == "", "the alarm to go off", 90.0, 0.2)


def test_alarm__own_job_has_ended_before_the_sweep__names_it_and_no_settled_job(
    grid: Grid, customer: Account
) -> None:
    settled = grid.submit_script(customer, "#!/bin/bash\nsleep 1\n")
    assert wait_for_end(grid, settled).status is ChainStatus.FINISHED
    ours = row_of(grid, settled).slurm_id
    foreign = own_job(grid, customer, "sleep 1")
    wait_for_state(grid, foreign, "COMPLETED")
    wait_until(lambda: f"'{foreign}'" in alarm(grid), "the alarm", 60.0, 0.2)
    assert "COMPLETED, 1 CPUs" in alarm(grid)
    assert f"'{ours}'" not in alarm(grid)


def test_alarm__own_job_named_as_a_job_that_is_over__names_it_all_the_same(
    grid: Grid, customer: Account
) -> None:
    """The job never came to SLURM: the ledger has no id of it."""
    job_id = grid.request(customer, "no-such-script", Resources(memPerCpu=100), 10)
    assert wait_for_end(grid, job_id).status is ChainStatus.FAILED
    assert row_of(grid, job_id).slurm_id is None
    foreign = own_job(grid, customer, "sleep 600", f"--job-name={job_id}")
    wait_until(lambda: f"'{foreign}'" in alarm(grid), "the alarm", 60.0, 0.2)
    slurm_of(grid).run("scancel", str(foreign))


def test_alarm__token_that_slurmctld_leaves_in_a_comment__is_on_while_the_job_lives(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, "#!/bin/bash\nsleep 600\n")
    slurm_id = running(grid, job_id)
    wait_until(
        lambda: f"{slurm_id}" in alarm(grid, "submit_tokens_unchecked"),
        "the alarm",
        60.0,
        0.2,
    )
    slurm_of(grid).run("scancel", f"--user={customer.address}")
    wait_until(
        lambda: alarm(grid, "submit_tokens_unchecked") == "",
        "the alarm to go off",
        60.0,
        0.2,
    )
