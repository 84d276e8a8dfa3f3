"""Blocks lost under a running fleet: one SLURM job, the right end, the right
minutes.
"""

from collections.abc import Iterator

import pytest

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.end_states import assert_ended
from tests.support.grid_assertions import (
    journal,
    parked,
    rows,
    slurm_ids,
    state_if_known,
    wait_for,
    wait_for_end,
)

# The lost claim may come back within so many blocks of a second. A worker that starts
# on a busy machine needs long to claim again.
CONFIRMATIONS = 600
GATE = "go"


@pytest.fixture(scope="module")
def reorganising() -> Iterator[Grid]:
    grid = Grid.start(
        GridOptions(
            block_time_s=1.0, overrides={"CHAIN_CONFIRMATIONS": str(CONFIRMATIONS)}
        )
    )
    try:
        grid.fleet.start(flower=False)
        yield grid
    finally:
        grid.stop()


@pytest.fixture(scope="module")
def buyer(reorganising: Grid) -> Account:
    return reorganising.new_customer()


def settled(grid: Grid, job_id: str) -> None:
    def is_settled() -> bool:
        state = state_if_known(grid, job_id)
        return state == "SETTLED" and grid.chain.job(job_id).status.is_final

    wait_until(is_settled, f"{job_id} to be settled", 90.0, 0.1)


def test_reorganisation__end_lost__is_settled_again_the_same(
    reorganising: Grid, buyer: Account
) -> None:
    grid = reorganising
    job_id = grid.submit_script(buyer, "#!/bin/bash\nexit 3\n")
    before = wait_for_end(grid, job_id)
    with grid.no_blocks():  # anvil can take back 64 blocks
        settled(grid, job_id)
    grid.chain.reorganise_from(before.block_number_state_change)
    assert not grid.chain.job(job_id).status.is_final
    wait_until(
        lambda: "Reorganised" in journal(grid, job_id), "the scan to see it", 60.0, 0.1
    )
    settled(grid, job_id)
    after = grid.chain.job(job_id)
    assert (after.status, after.exit_code, after.final_cost_wei) == (
        ChainStatus.FAILED,
        before.exit_code,
        before.final_cost_wei,
    )
    assert len(slurm_ids(grid, job_id)) == 1
    assert parked(grid) == []


def test_reorganisation__claim_lost_with_the_worker_down__one_slurm_job_ends_right(
    reorganising: Grid, buyer: Account
) -> None:
    grid = reorganising
    job_id = grid.submit_script(
        buyer, f"#!/bin/bash\nuntil [ -e ~/{GATE} ]; do sleep 0.1; done\n"
    )
    wait_until(
        lambda: state_if_known(grid, job_id) is not None, "the claim", 60.0, 0.05
    )
    with grid.no_blocks():  # anvil can take back 64 blocks
        wait_until(
            lambda: "SlurmRunningObserved" in journal(grid, job_id),
            "SLURM to run it",
            60.0,
            0.1,
        )
        sent = "SELECT 1 FROM transactions WHERE job_id = :id AND purpose = 'report RUNNING' AND state = 'SENT'"
        wait_until(
            lambda: bool(rows(grid, sent, id=job_id)), "a transaction", 60.0, 0.1
        )
    wait_for(grid, job_id, {ChainStatus.RUNNING})
    grid.processes.kill(grid.fleet.find("worker"))
    query = "SELECT t.block_number FROM transactions t JOIN jobs j ON j.claim_key LIKE t.hash || ':%' WHERE j.job_id = :id"
    claim = rows(grid, query, id=job_id)
    grid.chain.reorganise_from(claim[0].block_number)
    assert grid.chain.job(job_id).status is ChainStatus.META_SCHEDULED
    grid.fleet.start_worker()
    wait_until(
        lambda: "Reorganised" in journal(grid, job_id), "the scan to see it", 60.0, 0.1
    )
    (grid.users.home(buyer.address) / GATE).touch()
    settled(grid, job_id)
    assert_ended(grid, job_id, "COMPLETED", ChainStatus.FINISHED)
    assert len(slurm_ids(grid, job_id)) == 1
    assert parked(grid) == []
