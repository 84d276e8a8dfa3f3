"""A site without accounting, where the upstream plugin sends each callback once and
SLURM soon forgets: a callback that is lost costs time and nothing else. A job that
SLURM never begins raises an alarm, and is not looked at for ever.
"""

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.end_states import assert_ended, running, scontrol
from tests.support.grid_assertions import ledger, parked, rows, wait_for_end
from tests.support.grids import BLOCK_TIME_S

MIN_JOB_AGE_S = 90
GATE = "until [ -e ~/gate ]; do sleep 0.1; done"
ALARM = "SELECT 1 FROM alarms WHERE name = 'effect_parked'"
FAR_AHEAD = "SELECT 1 FROM effects WHERE job_id = :id AND kind = 'poll_slurm' AND due_at > now() + interval '10 minutes'"
SWEPT_FOR_THAT = (
    "SELECT 1 FROM reconciliations WHERE report ->> 'why' LIKE '%MinJobAge%'"
)
NEVER_BEGINS = "PENDING (PartitionTimeLimit)"
SEEN = "SELECT 1 FROM events WHERE job_id = :id AND details ->> 'seen' = :seen"


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    """One waiting job is all that may wait."""
    conf, overrides = ("EnforcePartLimits=NO",), {"CLAIM_MAX_WAITING": "1"}
    grid = Grid.start(
        GridOptions(
            block_time_s=BLOCK_TIME_S,
            nodes=1,
            hooks="upstream",
            min_job_age_s=MIN_JOB_AGE_S,
            slurm_conf=conf,
            overrides=overrides,
        )
    )
    try:
        grid.fleet.start(flower=False)
        yield grid
    finally:
        grid.stop()


def change(grid: Grid, statement: str, job_id: str) -> None:
    with ledger(grid) as engine, engine.begin() as connection:
        connection.execute(text(statement), {"id": job_id})


def looks_are_rare(grid: Grid, job_id: str) -> bool:
    """A callback that comes now restarts the count of looks."""
    change(grid, "UPDATE jobs SET poll_count = 16 WHERE job_id = :id", job_id)
    return bool(rows(grid, FAR_AHEAD, id=job_id))


def test_job__slurm_never_begins_it__is_parked_after_an_hour_until_it_runs(
    grid: Grid, customer: Account
) -> None:
    scontrol(grid, "update", "PartitionName=main", "MaxTime=10")
    job_id = grid.submit_script(customer, "#!/bin/bash\nexit 3\n")
    wait_until(
        lambda: bool(rows(grid, SEEN, id=job_id, seen=NEVER_BEGINS)),
        "a look",
        60.0,
        0.1,
    )
    behind = grid.submit_script(customer, "#!/bin/bash\nexit 4\n", minutes=5)
    # what never begins takes no place
    assert wait_for_end(grid, behind).exit_code == 4 * 256
    assert parked(grid) == []
    change(
        grid, "UPDATE events SET at = at - interval '1 hour' WHERE job_id = :id", job_id
    )
    wait_until(lambda: bool(parked(grid)), "the operator to be called", 60.0, 0.1)
    (left,) = parked(grid)
    assert (left.job_id, left.kind, NEVER_BEGINS in left.last_error) == (
        job_id,
        "poll_slurm",
        True,
    )
    wait_until(lambda: bool(rows(grid, ALARM)), "the alarm", 10.0, 0.1)
    scontrol(grid, "update", "PartitionName=main", "MaxTime=INFINITE")
    assert_ended(grid, job_id, "FAILED", ChainStatus.FAILED, 3 * 256)
    assert parked(grid) == []


def test_end_of_a_long_job__callback_is_lost__is_found_while_slurm_has_a_record(
    grid: Grid, customer: Account
) -> None:
    """As if it had run for hours: the next look is a quarter of an hour away."""
    job_id = grid.submit_script(customer, f"#!/bin/bash\n{GATE}\nexit 5\n")
    running(grid, job_id)
    wait_until(lambda: looks_are_rare(grid, job_id), "the looks to be rare", 90.0, 0.1)
    # the clock's are next
    wait_until(
        lambda: bool(rows(grid, SWEPT_FOR_THAT)), "the sweeps at the start", 60.0, 0.1
    )
    grid.processes.kill(grid.processes.find("upstream-plugin"))
    (grid.users.home(customer.address) / "gate").touch()
    assert_ended(grid, job_id, "FAILED", ChainStatus.FAILED, 5 * 256)
