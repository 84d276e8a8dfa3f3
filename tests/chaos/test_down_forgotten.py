"""SLURM has forgotten the jobs that ended while the whole fleet was down, and there is
no accounting.

With the project's own hooks the figures are in the spool, and no sweep ends the jobs
while no reporter delivers them. With the plugins that clusters in the field run, the
figures are lost: after two sweeps such a job is PANICKED, which costs its customer
nothing. The other jobs go on.
"""

from collections.abc import Iterator

import pytest

from devgrid.chain.model import ChainPrices
from devgrid.grid import Grid, definition_of
from devgrid.options import GridOptions, Hooks
from devgrid.processes import wait_until
from devgrid.services import script_store
from devgrid.services.workflow import Resources
from supervisor_tasks.jobs.model import ChainStatus
from supervisor_tasks.ledger.heartbeats import HEARTBEAT_MISSING_AFTER_S
from tests.support import chaos_jobs
from tests.support.faults import WITHOUT_REPORTER
from tests.support.grid_assertions import parked, rows, slurm_of, wait_for_end
from tests.support.grids import BLOCK_TIME_S

JOBS = 8
FAILS, FINISHES = 0, 1  # the jobs that end while the fleet is down
PURGED_WITHIN_S = 180.0  # slurmctld looks for old jobs now and then
SWEEPS = {"SWEEP_EVERY_S": "3", "SWEEP_GRACE_S": "5"}


@pytest.fixture(scope="module", params=["spool", "upstream"])
def hooks(request: pytest.FixtureRequest) -> Hooks:
    chosen: Hooks = request.param
    return chosen


@pytest.fixture(scope="module")
def grid(hooks: Hooks) -> Iterator[Grid]:
    running = Grid.start(
        GridOptions(
            block_time_s=BLOCK_TIME_S, hooks=hooks, min_job_age_s=2, overrides=SWEEPS
        )
    )
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


@pytest.mark.chaos
def test_jobs__ended_and_forgotten_with_the_fleet_down__end_right_or_cost_nothing(
    grid: Grid, hooks: Hooks
) -> None:
    job_ids = submit(grid)
    running = "SELECT 1 FROM jobs WHERE state = 'RUNNING'"
    wait_until(lambda: len(rows(grid, running)) == JOBS, "all jobs to run", 120.0, 0.2)
    *job_ids, first = job_ids
    (chaos_jobs.start_records(grid) / first).write_text("0")
    assert wait_for_end(grid, first, timeout_s=120.0).status is ChainStatus.FINISHED
    if hooks == "spool":
        reported = "SELECT 1 FROM periodic_runs WHERE name LIKE 'reporter %'"
        wait_until(
            lambda: bool(rows(grid, reported)), "a heartbeat of the reporter", 60.0, 0.5
        )
        grid.processes.kill(grid.processes.find("reporter"))
    for name in WITHOUT_REPORTER:
        grid.processes.kill(grid.fleet.find(name))
    ended = job_ids[:2]
    (chaos_jobs.start_records(grid) / ended[FAILS]).write_text("3")
    (chaos_jobs.start_records(grid) / ended[FINISHES]).write_text("0")
    squeue = (
        "squeue",
        "--noheader",
        "--states=all",
        f"--name={','.join(ended)}",
        "--format=%A",
    )
    wait_until(
        lambda: not slurm_of(grid).run(*squeue).stdout,
        "SLURM to forget them",
        PURGED_WITHIN_S,
        0.5,
    )
    silent = "SELECT 1 WHERE NOT EXISTS (SELECT FROM periodic_runs WHERE succeeded_at > now() - make_interval(secs => :age_s))"
    wait_until(
        lambda: bool(rows(grid, silent, age_s=HEARTBEAT_MISSING_AFTER_S)),
        "all heartbeats to be too old",
        60.0,
        0.5,
    )
    grid.fleet.start_callbacks()
    grid.fleet.start_worker()
    grid.fleet.start_beat()
    if hooks == "spool":  # the reporter does not come back as soon as the others do
        undecided = (
            "SELECT 1 FROM reconciliations WHERE report -> 'needs_operator' ?& :ids"
        )
        wait_until(
            lambda: bool(rows(grid, undecided, ids=ended)),
            "the sweeps to hold both",
            120.0,
            0.5,
        )
        grid.start_reporter()
    failed, finished = (wait_for_end(grid, job_id, timeout_s=120.0) for job_id in ended)
    if hooks == "spool":
        assert (failed.status, failed.exit_code) == (ChainStatus.FAILED, 3 * 256)
        assert (finished.status, finished.exit_code) == (ChainStatus.FINISHED, 0)
        assert figures(grid, ended) == slurms_figures(grid, ended)
    else:
        assert (failed.status, finished.status) == (
            ChainStatus.PANICKED,
            ChainStatus.PANICKED,
        )
        assert failed.final_cost_wei == finished.final_cost_wei == 0
        assert failed.last_error
    for job_id in job_ids[2:]:
        assert not grid.chain.job(job_id).status.is_final
        (chaos_jobs.start_records(grid) / job_id).write_text("0")
    for job_id in job_ids[2:]:
        assert (
            wait_for_end(grid, job_id, timeout_s=120.0).status is ChainStatus.FINISHED
        )
    assert parked(grid) == []


def submit(grid: Grid) -> list[str]:
    """Submit jobs that each wait for a file of their own, and end with the exit code
    that it holds.
    """
    gate = f'"{chaos_jobs.start_records(grid)}/$SLURM_JOB_NAME"'
    body = f"until [ -s {gate} ]; do sleep 0.2; done\nsleep 1\nexit $(cat {gate})"
    script = script_store.store_script(
        grid.folder / "scripts", f"#!/bin/bash\n{body}\n"
    )
    definition = definition_of(script, Resources(memPerCpu=100))
    return grid.chain.customers.request_jobs(
        grid.new_customer(), definition, JOBS, ChainPrices().of(definition) * 30
    )


def figures(grid: Grid, job_ids: list[str]) -> dict[int, int]:
    """The elapsed seconds in the ledger, by SLURM id."""
    query = "SELECT slurm_id, elapsed_s FROM jobs WHERE job_id = ANY(:ids)"
    return {row.slurm_id: row.elapsed_s for row in rows(grid, query, ids=job_ids)}


def slurms_figures(grid: Grid, job_ids: list[str]) -> dict[int, int]:
    """The elapsed seconds that SLURM gave its completion hook, by SLURM id."""
    lines = [
        line.split("|")
        for line in (grid.folder / "slurm" / "completed").read_text().splitlines()
    ]
    return {
        int(line[0]): int(line[4]) - int(line[3])
        for line in lines
        if line[6] in job_ids
    }
