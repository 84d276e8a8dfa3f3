"""The whole fleet is down while jobs start, end and are cancelled. Then it starts
again, and all jobs are settled right.

The hooks' events wait in the spool meanwhile. With the plugins that clusters in the
field run, they are lost, and the fleet queries SLURM.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devgrid.chain.model import ChainPrices
from devgrid.grid import Grid, definition_of
from devgrid.options import GridOptions, Hooks
from devgrid.processes import wait_until
from devgrid.services import script_store
from devgrid.services.workflow import Resources
from supervisor_tasks.jobs.model import ChainStatus
from tests.support import chaos_jobs
from tests.support.audit import HOOK_EVENTS_STORED, audit, violations
from tests.support.audit_evidence import gather
from tests.support.faults import WITHOUT_REPORTER
from tests.support.grid_assertions import parked, rows, slurm_of, wait_for_end
from tests.support.grids import BLOCK_TIME_S
from tests.support.marks import in_chaos

JOBS = 50
LONG_S = 600.0
NOT_WITH_UPSTREAM_PLUGINS = HOOK_EVENTS_STORED


@pytest.fixture(scope="module", params=[in_chaos("spool"), "upstream"])
def hooks(request: pytest.FixtureRequest) -> Hooks:
    chosen: Hooks = request.param
    return chosen


@pytest.fixture(scope="module")
def grid(hooks: Hooks, request: pytest.FixtureRequest) -> Iterator[Grid]:
    """The outage of ten minutes is longer than slurmctld keeps a job (MinJobAge, 300
    s): without the spool, accounting must have the figures.
    """
    accounting = hooks == "upstream" and bool(request.config.getoption("--chaos"))
    running = Grid.start(
        GridOptions(block_time_s=BLOCK_TIME_S, hooks=hooks, accounting=accounting)
    )
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


def test_down__while_50_jobs_end__all_settle_right(grid: Grid, hooks: Hooks) -> None:
    """No job runs for a minute here; in the next test some do."""
    job_ids = submit(grid, "sleep $((SLURM_JOB_ID % 3 + 1))")
    down(grid, hooks, job_ids, at_least_s=0.0)
    check(grid, hooks, job_ids)


@pytest.mark.chaos
@pytest.mark.timeout(2400)
def test_down__for_ten_minutes_while_50_jobs_end__all_settle_right(
    grid: Grid, hooks: Hooks
) -> None:
    job_ids = submit(grid, "sleep $((SLURM_JOB_ID * 7 % 150 + 1))")
    out_of_credits = chaos_jobs.timing_out(grid, grid.chain.account("customer"))
    down(grid, hooks, [*job_ids, out_of_credits], at_least_s=LONG_S)
    check(grid, hooks, [*job_ids, out_of_credits])
    assert (
        sum(row.elapsed_s // 60 for row in rows(grid, "SELECT elapsed_s FROM jobs")) > 0
    )


# --- acting ---------------------------------------------------------------------------


def submit(grid: Grid, work: str, n: int = JOBS) -> list[str]:
    """Submit jobs that wait for the gate to open, then do their work and end with exit
    codes 0 to 2.
    """
    gate(grid).unlink(missing_ok=True)
    body = f'until [ -e "{gate(grid)}" ]; do sleep 0.2; done\n{work}\nexit $((SLURM_JOB_ID % 3))'
    script = script_store.store_script(
        grid.folder / "scripts", chaos_jobs.marking(grid, body)
    )
    definition = definition_of(script, Resources(memPerCpu=100))
    customer = grid.new_customer(role="customer")
    return grid.chain.customers.request_jobs(
        customer, definition, n, ChainPrices().of(definition) * 30
    )


def gate(grid: Grid) -> Path:
    return chaos_jobs.start_records(grid) / "gate"


def down(grid: Grid, hooks: Hooks, job_ids: list[str], *, at_least_s: float) -> None:
    """Wait until SLURM has all jobs, kill the fleet, wait until the jobs have ended,
    and start the fleet again.
    """
    fleet, slurm = grid.fleet, slurm_of(grid)
    in_slurm = (
        "SELECT 1 FROM jobs WHERE job_id = ANY(:ids) AND state IN ('QUEUED', 'RUNNING')"
    )
    wait_until(
        lambda: len(rows(grid, in_slurm, ids=job_ids)) == len(job_ids),
        "SLURM to have all jobs",
        180.0,
        0.2,
    )
    for name in WITHOUT_REPORTER:
        grid.processes.kill(fleet.find(name))
    down_since_s = time.monotonic()
    cancel_one(grid, "RUNNING", job_ids)
    cancel_one(grid, "PENDING", job_ids)
    gate(grid).touch()
    left = ["squeue", "--noheader", f"--name={','.join(job_ids)}", "--format=%A"]
    wait_until(lambda: not slurm.run(*left).stdout, "all jobs to end", 400.0, 0.5)
    if hooks == "spool":
        wait_until(
            lambda: spooled_ends(grid) == len(job_ids),
            "an event of each end",
            60.0,
            0.2,
        )
        grid.processes.kill(grid.processes.find("reporter"))
    wait_until(
        lambda: time.monotonic() - down_since_s >= at_least_s,
        "the outage to last",
        at_least_s + 1.0,
        1.0,
    )
    assert active(grid, job_ids) == len(job_ids)
    fleet.start_callbacks(wait=False)
    fleet.start_worker()
    fleet.start_beat()
    if hooks == "spool":
        grid.start_reporter()


def cancel_one(grid: Grid, state: str, job_ids: list[str]) -> None:
    """Cancel a job of that state, as the site's admin, without the supervisor.
    slurmctld starts the first job a moment after it got the last one.
    """
    slurm, options = (
        slurm_of(grid),
        (
            "--noheader",
            f"--states={state}",
            f"--name={','.join(job_ids)}",
            "--format=%A",
        ),
    )
    wait_until(
        lambda: slurm.run("squeue", *options).stdout.split() != [],
        f"a job to be {state}",
        60.0,
        0.2,
    )
    assert (
        slurm.run("scancel", slurm.run("squeue", *options).stdout.split()[0]).returncode
        == 0
    )


def spooled_ends(grid: Grid) -> int:
    return len(list((grid.folder / "spool").glob("*-end")))


def active(grid: Grid, job_ids: list[str]) -> int:
    return sum(not grid.chain.job(job_id).status.is_final for job_id in job_ids)


def check(grid: Grid, hooks: Hooks, job_ids: list[str]) -> None:
    """Audit contract and SLURM: status, minutes and exit code of each job, and one
    SLURM job each.
    """
    ends = [wait_for_end(grid, job_id, timeout_s=240.0).status for job_id in job_ids]
    assert ends.count(ChainStatus.CANCELLED) == 2
    assert {ChainStatus.FINISHED, ChainStatus.FAILED} < set(ends)
    assert ChainStatus.PANICKED not in ends
    chaos_jobs.wait_for_rest(grid)
    results = audit(gather(grid.folder))
    applicable = [
        one
        for one in results
        if hooks == "spool" or one.check.question != NOT_WITH_UPSTREAM_PLUGINS
    ]
    assert violations(applicable) == []
    assert parked(grid) == []
