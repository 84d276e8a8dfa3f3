"""A node's slurmd dies under a job, and SLURM gives the job to another node: both runs
are billed. No report of the death comes to the supervisor: it sees only slurmctld's
states, with accounting and without.
"""

from collections.abc import Iterator

import pytest

from devgrid.chain.model import Account, ChainPrices
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.end_states import (
    PATIENCE_S,
    record_of,
    row_of,
    running,
    scontrol,
    wait_for_state,
)
from tests.support.grid_assertions import slurm_of, wait_for_end
from tests.support.grids import served_grid
from tests.support.requeueing import (
    begin_again,
    seconds_of_runs,
    shown,
    wait_for_seconds,
)

pytestmark = pytest.mark.chaos  # minutes; test_requeue_unseen.py has a node that fails

GIVEN_UP_AFTER_S = 20  # by slurmctld, of a node that does not answer
UNTIL_ENOUGH = "#!/bin/bash\nuntil [ -e ~/enough ]; do sleep 0.1; done\n"


@pytest.fixture(scope="module", params=[False, True], ids=["hooks alone", "accounting"])
def grid(request: pytest.FixtureRequest) -> Iterator[Grid]:
    conf = (f"SlurmdTimeout={GIVEN_UP_AFTER_S}",)
    with served_grid(
        GridOptions(min_job_age_s=86_400, accounting=request.param, slurm_conf=conf)
    ) as running_grid:
        yield running_grid


def node_dies(grid: Grid, slurm_id: int) -> str:
    """Kill the slurmd under a job that may be requeued. Returns the node, once SLURM
    has taken the job from it.
    """
    scontrol(grid, "update", f"JobId={slurm_id}", "Requeue=1")
    node = record_of(grid, slurm_id).node
    grid.processes.kill(grid.processes.find(f"slurmd-{node}"))
    wait_until(
        lambda: shown(grid, slurm_id, "RestartCnt") == "1",
        "SLURM to give the node up",
        PATIENCE_S,
        0.5,
    )
    return node


def node_is_repaired(grid: Grid, node: str) -> None:
    slurm_of(grid).start_node(int(node.removeprefix("node")))
    argv = ("sinfo", "--noheader", f"--nodes={node}", "--format=%T")
    wait_until(
        lambda: slurm_of(grid).run(*argv).stdout.strip() == "idle",
        f"{node} to be back",
        PATIENCE_S,
        0.5,
    )


def test_requeue__slurmd_is_killed__both_runs_are_billed(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, UNTIL_ENOUGH, minutes=10)
    slurm_id = running(grid, job_id)
    wait_for_seconds(grid, slurm_id, 5)
    node = node_dies(grid, slurm_id)
    wait_until(
        lambda: len(row_of(grid, job_id).runs) == 2,
        "a look at the second run",
        PATIENCE_S,
        0.1,
    )
    begin_again(grid, slurm_id)
    assert record_of(grid, slurm_id).node != node
    wait_for_seconds(grid, slurm_id, 3)
    (grid.users.home(customer.address) / "enough").touch()
    job = wait_for_end(grid, job_id, PATIENCE_S)
    assert job.status is ChainStatus.FINISHED
    # SLURM 22.05 would requeue it once more; this forbids it
    wait_for_state(grid, slurm_id, "COMPLETED", "CANCELLED")
    ends = seconds_of_runs(grid, slurm_id)
    assert [state for state, _ in ends[:2]] == ["NODE_FAIL", "COMPLETED"]
    assert [state for state, _ in ends[2:]] in (
        [],
        ["PENDING"],
        ["PENDING", "CANCELLED"],
    )
    del ends[2:]
    billed_s = row_of(grid, job_id).elapsed_s
    assert 0 <= billed_s - sum(seconds for _, seconds in ends) <= 1, (ends, billed_s)
    assert job.final_cost_wei == billed_s // 60 * ChainPrices().of(job.definition)
    node_is_repaired(grid, node)
