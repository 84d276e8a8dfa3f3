"""The site's clocks are an hour away from ours: every job ends right all the same."""

from collections.abc import Iterator

import pytest

from devgrid.grid import Grid
from supervisor_tasks.job import ChainStatus
from tests.chaos import jobs, operator
from tests.chaos.audit import audit, violations
from tests.chaos.clocks import set_site_clocks, shifted
from tests.chaos.evidence import gather
from tests.chaos.faults import SWEEPS, kill
from tests.watching import rows

PATIENCE_S = 180.0
HOUR_S = 3600


@pytest.fixture(params=[1, -1])
def hours(request: pytest.FixtureRequest) -> int:
    """By how much the site's clocks are ahead of ours."""
    return int(request.param)


@pytest.fixture
def grid(hours: int) -> Iterator[Grid]:
    running = Grid.start(block_time_s=0.25, overrides=SWEEPS)
    try:
        set_site_clocks(running, hours)
        running.fleet.start(flower=False)
        with operator.on_duty(running):
            yield running
    finally:
        running.stop()


def test_site_clocks_an_hour_off__also_when_slurmctld_forgets__all_end_right(grid: Grid, hours: int) -> None:
    customer = grid.new_customer()
    asked = [kind(grid, customer) for kind in (jobs.finishing, jobs.failing, jobs.rejected, jobs.topped_up)]
    asked.append(jobs.cancelled(grid, customer, {ChainStatus.RUNNING}))
    asked += [jobs.finishing(grid, customer, seconds=2) for _ in range(4)]
    kill(grid, "slurmctld")
    grid.processes.start_again("slurmctld", **shifted(grid, hours))
    asked += [jobs.finishing(grid, customer) for _ in range(4)]
    jobs.wait_for_end(grid, asked, PATIENCE_S)
    jobs.wait_for_rest(grid, PATIENCE_S)
    assert violations(audit(gather(grid.folder))) == []
    query = "SELECT extract(epoch FROM now())::int - slurm_submit_s AS behind_s FROM jobs WHERE job_id = :id"
    assert rows(grid, query, id=asked[0])[0].behind_s == pytest.approx(-hours * HOUR_S, abs=PATIENCE_S)
