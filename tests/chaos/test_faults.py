"""Each part is killed, stopped and made slow in turn while jobs come in: all jobs end
right, and no outage settles a job.
"""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import tail
from tests.chaos import operator
from tests.support import chaos_jobs, faults
from tests.support.audit import audit, violations
from tests.support.audit_evidence import gather
from tests.support.grid_assertions import (
    journal,
    rows,
    slurm_log_lines,
    wait_for_end,
)
from tests.support.grids import BLOCK_TIME_S

LASTS_S = 2.0
LONG_S = 10.0
MINUTE_S = 60.0
MANY = 100
FEW = 20
AT_ONCE = 8
# A slurmctld that is killed forgets the jobs of its last seconds. Only a sweep finds
# that, so sweeps come often here.
SETTINGS = {"SWEEP_EVERY_S": "30", "SWEEP_GRACE_S": "15"}
# violations for which an earlier test has failed: they stay on the grid
REPORTED: set[str] = set()
# Slow parts, clocks, and faults that are much like these are left to `make chaos`.
IN_TURN = [
    *(faults.killed(part) for part in (*faults.OURS, *faults.THEIRS)),
    *(faults.stopped(part) for part in (*faults.OURS, *faults.THEIRS)),
    *(
        faults.BY_NAME[name]
        for name in (
            "redis flushed",
            "redis out of memory",
            "redis connections lost",
            "two beats",
        )
    ),
    faults.BY_NAME["spool's disk full"],
    *faults.RPC,
]


@pytest.fixture(scope="module")
def target() -> Iterator[faults.Target]:
    with (
        faults.Target.start(
            GridOptions(block_time_s=BLOCK_TIME_S, overrides=SETTINGS)
        ) as running,
        operator.on_duty(running.grid),
    ):
        yield running


@pytest.fixture(scope="module")
def customer(target: faults.Target) -> Account:
    return target.grid.new_customer()


def hand_in(grid: Grid, customer: Account, number: int) -> list[str]:
    """Jobs that end in different ways, a third of them by failing."""
    kinds = (chaos_jobs.finishing, chaos_jobs.failing, chaos_jobs.finishing)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(
            pool.map(lambda place: kinds[place % 3](grid, customer), range(number))
        )


def assert_all_right(grid: Grid, job_ids: list[str], timeout_s: float) -> None:
    faults.have_ended_jobs_noticed(grid)
    for job_id in job_ids:
        wait_for_end(grid, job_id, timeout_s)
    chaos_jobs.wait_for_rest(grid, timeout_s)
    found = [
        line for line in violations(audit(gather(grid.folder))) if line not in REPORTED
    ]
    REPORTED.update(found)
    assert not found, "\n".join(
        [*found, *log_lines(grid, found), tail(grid.folder / "log" / "worker.log", 60)]
    )


def log_lines(grid: Grid, found: list[str]) -> Iterator[str]:
    """The journals, and the lines of slurmctld's and the nodes' logs, of the jobs that
    these violations name.
    """
    for job_id in sorted(set(re.findall(r"0x[0-9a-f]{64}", "\n".join(found)))):
        yield f"{job_id}: {' '.join(journal(grid, job_id))}"
        for row in rows(
            grid,
            "SELECT DISTINCT slurm_id FROM callbacks WHERE job_id = :id",
            id=job_id,
        ):
            yield from slurm_log_lines(grid, row.slurm_id)


@pytest.mark.timeout(600)
def test_faults__one_after_another_while_jobs_come_in__all_end_right(
    target: faults.Target, customer: Account
) -> None:
    job_ids = hand_in(target.grid, customer, 3)
    for fault in IN_TURN:
        with fault.on(target):
            job_ids += hand_in(target.grid, customer, 1)
            time.sleep(LASTS_S)  # the fault itself
        job_ids += hand_in(target.grid, customer, 1)
    assert_all_right(target.grid, job_ids, 120.0)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", faults.BY_NAME)
def test_fault__under_a_load_of_100_jobs__all_end_right(
    target: faults.Target, customer: Account, name: str
) -> None:
    job_ids = hand_in(target.grid, customer, MANY // 2)
    with faults.BY_NAME[name].on(target):
        job_ids += hand_in(target.grid, customer, MANY // 2)
        time.sleep(LONG_S)
    assert_all_right(target.grid, job_ids, 300.0)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        f"{part} {how}"
        for part in ("postgres", "redis")
        for how in ("killed", "stopped")
    ],
)
def test_fault__that_lasts_a_minute__all_end_right(
    target: faults.Target, customer: Account, name: str
) -> None:
    job_ids = hand_in(target.grid, customer, FEW // 2)
    with faults.BY_NAME[name].on(target):
        job_ids += hand_in(target.grid, customer, FEW // 2)
        time.sleep(MINUTE_S)
    assert_all_right(target.grid, job_ids, 300.0)
