"""Everything of ours is down while jobs start, end and are cancelled; then it is started again and all settle right.

What SLURM tells meanwhile waits in the spool, or is lost where the field's own plugins are used; then SLURM itself is asked.
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
from tests.chaos import jobs
from tests.chaos.audit import HOOKS_HEARD, audit, violations
from tests.chaos.evidence import gather
from tests.support.grids import BLOCK_TIME_S
from tests.support.marks import in_chaos
from tests.support.watching import parked, rows, slurm_of, wait_for_end

JOBS = 50
OURS = ("worker", "beat", "callbacks")
LONG_S = 600.0
NOT_WITH_THE_FIELDS = HOOKS_HEARD


@pytest.fixture(scope="module", params=[in_chaos("spool"), "upstream"])
def hooks(request: pytest.FixtureRequest) -> Hooks:
    chosen: Hooks = request.param
    return chosen


@pytest.fixture(scope="module")
def grid(hooks: Hooks, request: pytest.FixtureRequest) -> Iterator[Grid]:
    """Ten minutes are longer than slurmctld remembers (MinJobAge, 300 s): where the spool does not keep the figures,
    accounting has to.
    """
    accounting = hooks == "upstream" and bool(request.config.getoption("--chaos"))
    running = Grid.start(GridOptions(block_time_s=BLOCK_TIME_S, hooks=hooks, accounting=accounting))
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


def test_down_while_50_jobs_end__all_settle_right(grid: Grid, hooks: Hooks) -> None:
    """Minutes are none here: see the next one."""
    job_ids = ask(grid, "sleep $((SLURM_JOB_ID % 3 + 1))")
    down(grid, hooks, job_ids, at_least_s=0.0)
    check(grid, hooks, job_ids)


@pytest.mark.chaos
@pytest.mark.timeout(2400)
def test_down_for_ten_minutes_while_50_jobs_end__all_settle_right(grid: Grid, hooks: Hooks) -> None:
    job_ids = ask(grid, "sleep $((SLURM_JOB_ID * 7 % 150 + 1))")
    out_of_credits = jobs.timing_out(grid, grid.chain.account("customer"))
    down(grid, hooks, [*job_ids, out_of_credits], at_least_s=LONG_S)
    check(grid, hooks, [*job_ids, out_of_credits])
    assert sum(row.elapsed_s // 60 for row in rows(grid, "SELECT elapsed_s FROM jobs")) > 0


# --- acting ---------------------------------------------------------------------------------------------------------------


def ask(grid: Grid, work: str, n: int = JOBS) -> list[str]:
    """Jobs that wait for the gate to open, then do their work and end with one exit code or another."""
    gate(grid).unlink(missing_ok=True)
    body = f'until [ -e "{gate(grid)}" ]; do sleep 0.2; done\n{work}\nexit $((SLURM_JOB_ID % 3))'
    script = script_store.store_script(grid.folder / "scripts", jobs.marking(grid, body))
    definition = definition_of(script, Resources(memPerCpu=100))
    customer = grid.new_customer(role="customer")
    return grid.chain.customers.request_jobs(customer, definition, n, ChainPrices().of(definition) * 30)


def gate(grid: Grid) -> Path:
    return jobs.marks(grid) / "gate"


def down(grid: Grid, hooks: Hooks, job_ids: list[str], *, at_least_s: float) -> None:
    """Once SLURM has all jobs, all of ours is killed; the jobs end; all of ours is started again."""
    fleet, slurm = grid.fleet, slurm_of(grid)
    given = "SELECT 1 FROM jobs WHERE job_id = ANY(:ids) AND state IN ('QUEUED', 'RUNNING')"
    wait_until(lambda: len(rows(grid, given, ids=job_ids)) == len(job_ids), "SLURM to have all jobs", 180.0, 0.2)
    for name in OURS:
        grid.processes.kill(fleet.find(name))
    down_since_s = time.monotonic()
    cancel_one(grid, "RUNNING", job_ids)
    cancel_one(grid, "PENDING", job_ids)
    gate(grid).touch()
    left = ["squeue", "--noheader", f"--name={','.join(job_ids)}", "--format=%A"]
    wait_until(lambda: not slurm.run(*left).stdout, "all jobs to end", 400.0, 0.5)
    if hooks == "spool":
        wait_until(lambda: spooled_ends(grid) == len(job_ids), "an event of each end", 60.0, 0.2)
        grid.processes.kill(grid.processes.find("reporter"))
    wait_until(lambda: time.monotonic() - down_since_s >= at_least_s, "the outage to last", at_least_s + 1.0, 1.0)
    assert hot(grid, job_ids) == len(job_ids)
    fleet.start_callbacks(wait=False)
    fleet.start_worker()
    fleet.start_beat()
    if hooks == "spool":
        grid.start_reporter()


def cancel_one(grid: Grid, state: str, job_ids: list[str]) -> None:
    """As the site's admin does it, behind our back. slurmctld begins the first job a moment after it has the last."""
    slurm, about = slurm_of(grid), ("--noheader", f"--states={state}", f"--name={','.join(job_ids)}", "--format=%A")
    wait_until(lambda: slurm.run("squeue", *about).stdout.split() != [], f"a job to be {state}", 60.0, 0.2)
    assert slurm.run("scancel", slurm.run("squeue", *about).stdout.split()[0]).returncode == 0


def spooled_ends(grid: Grid) -> int:
    return len(list((grid.folder / "spool").glob("*-end")))


def hot(grid: Grid, job_ids: list[str]) -> int:
    return sum(not grid.chain.job(job_id).status.cold for job_id in job_ids)


def check(grid: Grid, hooks: Hooks, job_ids: list[str]) -> None:
    """As contract and SLURM see it, by the audit: status, minutes, exit code, one SLURM job each."""
    ends = [wait_for_end(grid, job_id, timeout_s=240.0).status for job_id in job_ids]
    assert ends.count(ChainStatus.CANCELLED) == 2
    assert {ChainStatus.FINISHED, ChainStatus.FAILED} < set(ends)
    assert ChainStatus.PANICKED not in ends
    jobs.wait_for_rest(grid)
    found = audit(gather(grid.folder))
    wrong = [one for one in found if hooks == "spool" or one.check.question != NOT_WITH_THE_FIELDS]
    assert violations(wrong) == []
    assert parked(grid) == []
