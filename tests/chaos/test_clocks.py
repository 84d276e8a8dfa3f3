"""The site's clocks are an hour ahead of or behind ours: every job still ends right,
even one that slurmctld forgets.
"""

import json
import shutil
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support import chaos_jobs
from tests.support.audit import audit, violations
from tests.support.audit_evidence import gather
from tests.support.grid_assertions import journal, ledger, rows, slurm_of, wait_for
from tests.support.grids import BLOCK_TIME_S
from tests.support.shifted_clocks import set_site_clocks, shifted

pytestmark = pytest.mark.chaos  # minutes

PATIENCE_S = 180.0
HOUR_S = 3600
SETTINGS = {"SWEEP_EVERY_S": "10", "SWEEP_GRACE_S": "5"}
NODES = "nodename=node[1-4]"


@pytest.fixture(params=[-1, 1])
def hours_ahead(request: pytest.FixtureRequest) -> int:
    """By how much the site's clocks are ahead of ours."""
    return int(request.param)


@pytest.fixture
def grid(hours_ahead: int) -> Iterator[Grid]:
    running = Grid.start(GridOptions(block_time_s=BLOCK_TIME_S, overrides=SETTINGS))
    try:
        set_site_clocks(running, hours_ahead)
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


def test_jobs__site_clocks_an_hour_off__end_right_and_forgotten_ones_run_once(
    grid: Grid, hours_ahead: int
) -> None:
    customer = grid.new_customer()
    job_ids = [
        kind(grid, customer)
        for kind in (
            chaos_jobs.finishing,
            chaos_jobs.failing,
            chaos_jobs.rejected,
            chaos_jobs.topped_up,
        )
    ]
    job_ids.append(chaos_jobs.cancelled(grid, customer, {ChainStatus.RUNNING}))
    chaos_jobs.wait_for_end(grid, job_ids, PATIENCE_S)
    slurm_of(grid).run("scontrol", "update", NODES, "state=drain", "reason=test")
    state = slurm_of(grid).layout.folder / "state"
    grid.processes.stop(grid.processes.find("slurmctld"))  # it saves its state
    shutil.copytree(state, state.with_name("saved"))
    grid.processes.start_again("slurmctld", **shifted(grid, hours_ahead))
    waiting = [chaos_jobs.finishing(grid, customer) for _ in range(3)]
    for job_id in waiting:
        wait_for(grid, job_id, {ChainStatus.SCHEDULED}, PATIENCE_S)
    wait_until(
        lambda: all("Submitted" in journal(grid, job_id) for job_id in waiting),
        "sbatch",
        PATIENCE_S,
        0.05,
    )
    grid.processes.kill(grid.processes.find("slurmctld"))
    # as if it had died before the first poll of them
    with ledger(grid) as engine, engine.begin() as connection:
        connection.execute(
            text("UPDATE jobs SET slurm_submit_s = NULL WHERE job_id = ANY(:ids)"),
            {"ids": waiting},
        )
    shutil.rmtree(state)
    state.with_name("saved").rename(state)
    grid.processes.start_again("slurmctld", **shifted(grid, hours_ahead))
    slurm_of(grid).run("scontrol", "update", NODES, "state=resume")
    chaos_jobs.wait_for_end(grid, [*job_ids, *waiting], PATIENCE_S)
    assert violations(audit(gather(grid.folder))) == []
    assert {grid.chain.job(job_id).status for job_id in waiting} == {
        ChainStatus.FINISHED
    }
    assert all("SubmissionLostBySlurm" in journal(grid, job_id) for job_id in waiting)
    (start,) = rows(grid, "SELECT value FROM facts WHERE name = 'slurm.start'")
    # the first id of this slurmctld, as it was polled soon enough
    assert json.loads(start.value)["first_id"] > 0
    query = "SELECT extract(epoch FROM now())::int - slurm_submit_s AS behind_s FROM jobs WHERE job_id = :id"
    assert rows(grid, query, id=job_ids[0])[0].behind_s == pytest.approx(
        -hours_ahead * HOUR_S, abs=PATIENCE_S
    )
