"""SLURM runs a job twice while the supervisor is away, or as a node failed: both runs
are billed, with accounting and without. Without accounting, the site's own hooks report
both. Without these, the first run counts for the longest time that is possible.
"""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from devgrid.chain.model import Account, ChainPrices
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.end_states import (
    PATIENCE_S,
    as_customer,
    id_of,
    record_of,
    row_of,
    running,
    scontrol,
    wait_for_first_look,
    wait_for_state,
)
from tests.support.grid_assertions import slurm_of, wait_for_end
from tests.support.grids import served_grid
from tests.support.marks import in_chaos
from tests.support.requeueing import (
    begin_again,
    requeue,
    seconds_of_runs,
    wait_for_seconds,
)

ALL_NODES = "nodename=node[1-4]"
WAITED_S = 25.0  # for nothing, before the first run
NEITHER = GridOptions(hooks="upstream", job_submit=False)
UNTIL_ENOUGH = "#!/bin/bash\nuntil [ -e ~/{gate} ]; do sleep 0.1; done\n"


@pytest.fixture(
    scope="module",
    params=[
        in_chaos(GridOptions(job_submit=False), id="hooks alone"),
        pytest.param(GridOptions(accounting=True, job_submit=False), id="accounting"),
        in_chaos(NEITHER, id="neither"),
    ],
)
def options(request: pytest.FixtureRequest) -> GridOptions:
    chosen: GridOptions = request.param
    return chosen


@pytest.fixture(scope="module")
def grid(options: GridOptions) -> Iterator[Grid]:
    with served_grid(replace(options, min_job_age_s=86_400)) as running_grid:
        yield running_grid


def assert_billed(grid: Grid, job_id: str, slurm_id: int, unsure_s: int = 0) -> None:
    """Assert that the seconds of all runs in SLURM are billed, and at most `unsure_s`
    for the time between them. A run that a node rejects in its first second counts as a
    run, too.
    """
    job = wait_for_end(grid, job_id, PATIENCE_S)
    assert job.status is ChainStatus.FINISHED
    ends = seconds_of_runs(grid, slurm_id)
    states = [state for state, _ in ends]
    # after that, SLURM must not requeue it
    ends = ends[: states.index("COMPLETED") + 1]
    assert len(ends) >= 2, ends
    billed_s = row_of(grid, job_id).elapsed_s
    assert (
        0 <= billed_s - sum(seconds for _, seconds in ends) <= len(ends) - 1 + unsure_s
    ), (ends, billed_s)
    assert job.final_cost_wei == row_of(
        grid, job_id
    ).elapsed_s // 60 * ChainPrices().of(job.definition)


@pytest.mark.chaos  # minutes
def test_requeue__while_the_supervisor_is_away__both_runs_are_billed(
    grid: Grid, options: GridOptions, customer: Account
) -> None:
    scontrol(grid, "update", ALL_NODES, "state=drain", "reason=test")
    gate = grid.users.home(customer.address) / "enough of it"
    job_id = grid.submit_script(
        customer, UNTIL_ENOUGH.format(gate="enough\\ of\\ it"), minutes=10
    )
    slurm_id = id_of(grid, job_id)
    wait_for_first_look(grid, job_id)
    queued_s = record_of(grid, slurm_id).submit_s
    grid.processes.kill(grid.fleet.find("worker"))
    since_s = time.monotonic()
    wait_until(
        lambda: time.monotonic() - since_s >= WAITED_S,
        "some time to pass",
        2 * WAITED_S,
        0.5,
    )
    scontrol(grid, "update", ALL_NODES, "state=resume")
    wait_for_state(grid, slurm_id, "RUNNING")
    wait_for_seconds(grid, slurm_id, 5)
    start_s = requeue(grid, customer, slurm_id)
    begin_again(grid, slurm_id)
    wait_for_seconds(grid, slurm_id, 3)
    gate.touch()
    wait_for_state(grid, slurm_id, "COMPLETED")
    grid.fleet.start_worker()
    if options is not NEITHER:
        assert_billed(grid, job_id, slurm_id)
        return
    assert_billed(grid, job_id, slurm_id, unsure_s=start_s - queued_s)
    assert row_of(grid, job_id).elapsed_s >= WAITED_S + 5, (
        "the first run may have begun right after the last look"
    )


def test_requeue__node_fails__both_runs_are_billed(
    grid: Grid, customer: Account
) -> None:
    gate = grid.users.home(customer.address) / "enough"
    job_id = grid.submit_script(
        customer, UNTIL_ENOUGH.format(gate="enough"), minutes=10
    )
    slurm_id = running(grid, job_id)
    as_customer(grid, customer, "scontrol", "update", f"JobId={slurm_id}", "Requeue=1")
    wait_for_seconds(grid, slurm_id, 5)
    node = record_of(grid, slurm_id).node
    scontrol(
        grid, "update", f"nodename={node}", "state=drain", "reason=test"
    )  # else it would be back with its next message
    scontrol(grid, "update", f"nodename={node}", "state=down", "reason=test")
    wait_until(
        lambda: len(row_of(grid, job_id).runs) == 2,
        "a look at the second run",
        PATIENCE_S,
        0.1,
    )
    begin_again(grid, slurm_id)
    wait_for_seconds(grid, slurm_id, 3)
    gate.touch()
    assert_billed(grid, job_id, slurm_id)
    assert record_of(grid, slurm_id).node != node
    slurm_of(grid).run("scontrol", "update", f"nodename={node}", "state=resume")
