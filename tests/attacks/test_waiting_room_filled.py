"""One customer fills CLAIM_MAX_WAITING with jobs that wait or are held: the jobs of
others are still claimed, and if the limit is reached for all, an alarm names the
customer.
"""

from collections.abc import Iterator

import pytest

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.end_states import as_customer, id_of, scontrol
from tests.support.grid_assertions import rows, slurm_of, wait_for, wait_for_end
from tests.support.grids import served_grid
from tests.support.marks import in_chaos

PLACES = 4
SHARE = 0.5  # CLAIM_CUSTOMER_SHARE: two customers fill the room
ALL = 4 * PLACES
PATIENCE_S = 90.0
FULL = "SELECT details FROM alarms WHERE name = 'claims_full'"
WAITING = "SELECT count(*) AS number FROM jobs WHERE customer = :customer AND state = 'QUEUED'"


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    overrides = {
        "CLAIM_MAX_WAITING": str(PLACES),
        "CLAIM_CUSTOMER_SHARE": str(SHARE),
    }
    with served_grid(
        GridOptions(nodes=1, overrides=overrides, job_submit=False)
    ) as running:
        yield running


def waiting(grid: Grid, customer: Account) -> int:
    return int(rows(grid, WAITING, customer=customer.address.lower())[0].number)


@pytest.mark.parametrize("owners", [in_chaos(1), PLACES])
def test_waiting_room__filled_with_jobs_that_their_owners_hold__others_are_claimed(
    grid: Grid, customer: Account, owners: int
) -> None:
    scontrol(grid, "update", "PartitionName=main", "State=DOWN")  # nothing begins
    holders = [grid.new_customer() for _ in range(owners)]
    for holder in holders * (PLACES // owners):
        held = id_of(grid, grid.submit_script(holder, "#!/bin/bash\nsleep 600\n"))
        as_customer(grid, holder, "scontrol", "hold", str(held))
    job_id = grid.submit_script(customer, "#!/bin/bash\ntrue\n")
    wait_for(grid, job_id, {ChainStatus.SCHEDULED}, PATIENCE_S)
    wait_until(
        lambda: not rows(grid, FULL),
        "the alarm to be over, if it was on",
        PATIENCE_S,
        0.2,
    )
    scontrol(grid, "update", "PartitionName=main", "State=UP")
    assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.FINISHED
    for holder in holders:
        slurm_of(grid).run("scancel", f"--user={holder.address.lower()}")


def test_waiting_room__filled_by_one_customer__others_are_claimed_and_alarm_names_it(
    grid: Grid, customer: Account
) -> None:
    scontrol(grid, "update", "PartitionName=main", "State=DOWN")  # nothing begins
    greedy = grid.new_customer()
    grid.submit_scripts(greedy, "#!/bin/bash\nsleep 600\n", PLACES + 2)
    wait_until(
        lambda: waiting(grid, greedy) >= PLACES,
        "the room to be filled",
        PATIENCE_S,
        0.1,
    )
    job_id = grid.submit_script(customer, "#!/bin/bash\ntrue\n")
    wait_for(grid, job_id, {ChainStatus.SCHEDULED}, PATIENCE_S)
    id_of(grid, job_id)
    grid.submit_scripts(greedy, "#!/bin/bash\nsleep 600\n", ALL)
    wait_until(
        lambda: waiting(grid, greedy) > ALL,
        "all of one customer's jobs to be claimed",
        PATIENCE_S,
        0.1,
    )
    # One customer fills half of the room, and the jobs of two others the rest: the last
    # one finds none.
    for _ in range(2):
        grid.submit_script(grid.new_customer(), "#!/bin/bash\ntrue\n")
    wait_until(
        lambda: bool(rows(grid, FULL)), "the operator to be called", PATIENCE_S, 0.2
    )
    (alarm,) = rows(grid, FULL)
    assert greedy.address.lower() in alarm.details["customers"]
    slurm_of(grid).run("scancel", f"--user={greedy.address.lower()}")
    wait_until(lambda: not rows(grid, FULL), "the alarm to be over", PATIENCE_S, 0.2)
