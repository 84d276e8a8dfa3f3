"""What a sweep and the monitor ask of SLURM and of the chain does not grow with the
number of jobs.
"""

from collections.abc import Iterator

import pytest

from devgrid.grid import Grid
from devgrid.options import GridOptions
from supervisor_tasks.reconciliation.lost_job_traces import CUSTOMERS_AT_ONCE
from tests.support.load_sweep import forget_waiting_jobs, measure, prepare

JOBS, MISSING, CALLBACKS = 700, 50, 200
# squeue, accounting by id and by customer, scontrol show config (twice when a minute
# has passed), the login node's clock
FOR_ANY_JOBS = 6


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    running = Grid.start(GridOptions(block_time_s=0.25))
    try:
        prepare(running)
        yield running
    finally:
        running.stop()


def test_sweep_and_monitor__many_jobs__take_few_commands_and_requests(
    grid: Grid,
) -> None:
    sweeps, polls = measure(grid, JOBS, MISSING, CALLBACKS, sweeps=1)
    all_well, some_missing = sweeps
    assert (all_well.commands, some_missing.commands) == (
        1,
        2,
    )  # slurmctld, and accounting for those that it does not list
    assert max(all_well.requests, some_missing.requests) <= 20
    assert polls.commands == 1


def test_sweep__many_jobs_forgotten__two_commands_for_each_of_a_few_customers(
    grid: Grid,
) -> None:
    each, others = 4, 2
    (commands, found), (later, found_later) = forget_waiting_jobs(
        grid, CUSTOMERS_AT_ONCE + others, each
    )
    assert found == {"forgotten": each * CUSTOMERS_AT_ONCE, "missing": each * others}
    assert found_later == {"forgotten": each * others}
    # the home, as the admin, and the logs there
    assert commands <= FOR_ANY_JOBS + 2 * CUSTOMERS_AT_ONCE
    assert later <= FOR_ANY_JOBS + 2 * others
