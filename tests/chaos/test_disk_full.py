"""A disk is full. If it is the ledger's, no callback is acknowledged that is not
stored, and all goes on afterwards. If it is the spool's, SLURM goes on, the reporter
logs which ends the hooks could not write, and the jobs still end right.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import tail, wait_until
from protos.supervisor.v1alpha1.supervisor_pb2 import JobStatus, SetJobStatusRequest
from tests.support import chaos_jobs, faults
from tests.support.audit import audit, violations
from tests.support.audit_evidence import gather
from tests.support.callback_servers import TRIES
from tests.support.forged_callbacks import send
from tests.support.grid_assertions import parked, rows, wait_for_end
from tests.support.grids import BLOCK_TIME_S

LASTS_S = 4.0
FULL = faults.BY_NAME["postgres' disk full"]
SPOOL_FULL = faults.BY_NAME["spool's disk full"]


@pytest.fixture(scope="module")
def target() -> Iterator[faults.Target]:
    with faults.Target.start(GridOptions(block_time_s=BLOCK_TIME_S)) as running:
        yield running


def call(grid: Grid, number: int, tries: int = 1) -> str:
    """Send a callback about a job that no ledger has. Returns the answer."""
    callback = SetJobStatusRequest(
        name=f"0x{number:064x}", id=10**6 + number, status=JobStatus.JOB_STATUS_FINISHED
    )
    (answer,) = send(grid, [callback], tries)
    return answer


@pytest.mark.timeout(300)
def test_disk_full__callbacks_and_jobs_under_way__loses_no_acknowledged_call(
    target: faults.Target,
) -> None:
    grid = target.grid
    customer = grid.new_customer()
    job_ids = [
        kind(grid, customer)
        for kind in (chaos_jobs.finishing, chaos_jobs.failing, chaos_jobs.finishing)
        for _ in range(2)
    ]
    answers = [call(grid, 0, TRIES)]
    with FULL.on(target):
        ends_s = time.monotonic() + LASTS_S
        job_ids += [chaos_jobs.finishing(grid, customer) for _ in range(3)]
        while time.monotonic() < ends_s or len(answers) == 1:
            answers.append(call(grid, len(answers)))
    wait_until(
        lambda: call(grid, len(answers)) == "OK",
        "callbacks to be stored again",
        60.0,
        0.2,
    )
    assert answers[0] == "OK"
    assert set(answers[1:]) == {"UNAVAILABLE"}
    for job_id in job_ids:
        wait_for_end(grid, job_id, 90.0)
    chaos_jobs.wait_for_rest(grid, 90.0)
    assert parked(grid) == []
    found = violations(audit(gather(grid.folder)))
    assert found == [], tail(grid.folder / "log" / "worker.log", 60)


@pytest.mark.timeout(300)
def test_spool_disk_full__jobs_start_and_end__slurm_runs_and_lost_ends_are_found(
    target: faults.Target,
) -> None:
    grid = target.grid
    customer = grid.new_customer()
    under_way = [chaos_jobs.finishing(grid, customer, 2.0) for _ in range(3)]
    with SPOOL_FULL.on(target):
        job_ids = [
            *under_way,
            chaos_jobs.failing(grid, customer),
            *(chaos_jobs.finishing(grid, customer) for _ in range(3)),
        ]
        for job_id in job_ids:
            wait_for_end(grid, job_id, 90.0)
    ids = {
        row.slurm_id
        for row in rows(
            grid, "SELECT slurm_id FROM jobs WHERE job_id = ANY(:ids)", ids=job_ids
        )
    }
    chaos_jobs.wait_for_rest(grid, 90.0)
    wait_until(
        lambda: not (grid.folder / "spool" / "lost.log").stat().st_size,
        "the reporter to log the lost ends",
        60.0,
    )
    assert gather(grid.folder).lost_ends & ids
    assert parked(grid) == []
    found = violations(audit(gather(grid.folder)))
    assert found == [], tail(grid.folder / "log" / "worker.log", 60)


def test_disk_full__of_a_grid__leaves_no_mount_for_others_to_see(
    target: faults.Target,
) -> None:
    assert str(target.grid.folder) not in Path("/proc/mounts").read_text()
