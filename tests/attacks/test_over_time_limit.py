"""A site's SLURM lets jobs run on after their time limit (OverTimeLimit), so a paid minute
would be as many as its owner likes.
"""

from collections.abc import Iterator

import pytest

from devgrid.chain.model import Account, ChainPrices
from devgrid.grid import Grid
from devgrid.options import GridOptions
from supervisor_tasks.jobs.model import ChainStatus
from supervisor_tasks.jobs.runs import SLURM_ENDS_WITHIN_S
from tests.support.end_states import running, wait_for_state
from tests.support.grid_assertions import wait_for_end
from tests.support.grids import served_grid

pytestmark = pytest.mark.chaos  # three minutes


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    with served_grid(GridOptions(slurm_conf=("OverTimeLimit=UNLIMITED",))) as started:
        yield started


def test_over_time_limit__job_that_goes_on__is_cancelled_two_minutes_later(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, "#!/bin/bash\nsleep 900\n", minutes=1)
    slurm_id = running(grid, job_id)
    job = wait_for_end(grid, job_id, 60.0 + SLURM_ENDS_WITHIN_S + 90.0)
    assert job.status is ChainStatus.OUT_OF_CREDITS
    assert job.final_cost_wei == ChainPrices().of(job.definition)
    wait_for_state(grid, slurm_id, "CANCELLED")
