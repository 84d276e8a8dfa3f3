"""Any process may die during the journey of a job, and the job still ends once in SLURM
and once on the contract.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.end_states import assert_ended
from tests.support.grid_assertions import (
    journal,
    ledger,
    parked,
    rows,
    slurm_ids,
    slurm_of,
    wait_for,
)

# test_crashes.py, which `make test-extended` runs, has a death at each point of the program
pytestmark = pytest.mark.chaos

# else the job may end before a poll
SCRIPT = "#!/bin/bash\nuntil [ -e ~/{gate} ]; do sleep 0.2; done\necho done\n"
KILLED_AT = (
    "(requested)",
    "Claimed",
    "ScriptFetched",
    "SubmitStarted",
    "Submitted",
    "SlurmRunningObserved",
    "SlurmCompleted",
)
FLUSHED_AT = ("Claimed", "Submitted", "SlurmRunningObserved")


def kill_worker(grid: Grid) -> None:
    fleet = grid.fleet
    grid.processes.kill(fleet.find("worker"))
    fleet.start_worker()


@contextmanager
def nodes_drained(grid: Grid) -> Iterator[None]:
    """Inside this, SLURM accepts jobs and starts none."""
    slurm_of(grid).run(
        "scontrol", "update", "nodename=node[1-4]", "state=drain", "reason=test"
    )
    try:
        yield
    finally:
        slurm_of(grid).run("scontrol", "update", "nodename=node[1-4]", "state=resume")


def gated(grid: Grid, customer: Account) -> tuple[str, Callable[[], None]]:
    """A job that runs until the returned function is called."""
    gate = f"gate-{secrets.token_hex(4)}"
    return grid.submit_script(customer, SCRIPT.format(gate=gate)), (
        grid.users.home(customer.address) / gate
    ).touch


def until(grid: Grid, job_id: str, event: str) -> None:
    wait_until(
        lambda: event in journal(grid, job_id), f"{event} of {job_id}", 60.0, 0.01
    )


def assert_ended_well(grid: Grid, customer: Account, job_id: str) -> None:
    """Assert it on the contract, in SLURM and in the customer's output."""
    assert_ended(grid, job_id, "COMPLETED", ChainStatus.FINISHED)
    assert len(slurm_ids(grid, job_id)) == 1
    assert grid.output(customer.address, job_id) == "done\n"
    assert parked(grid) == []
    transitions = grid.chain.events("JobRepository", "JobTransitionEvent")
    mine = [
        (before, after)
        for raw, before, after in transitions
        if "0x" + raw.hex() == job_id
    ]
    assert mine == [(0, 1), (1, 2), (2, 3), (3, 5)]


@pytest.mark.parametrize(
    "event",
    KILLED_AT,
)
def test_worker_killed_at__any_step_of_the_journey__ends_the_same(
    grid: Grid, customer: Account, event: str
) -> None:
    job_id, go = gated(grid, customer)
    if event == "SlurmCompleted":
        go()
    if event != "(requested)":
        until(grid, job_id, event)
    kill_worker(grid)
    go()
    assert_ended_well(grid, customer, job_id)


@pytest.mark.parametrize("event", FLUSHED_AT)
def test_redis_flushed_at__any_step_of_the_journey__ends_the_same(
    grid: Grid, customer: Account, event: str
) -> None:
    from redis import Redis

    job_id, go = gated(grid, customer)
    until(grid, job_id, event)
    with Redis(
        unix_socket_path=grid.environment["BROKER_URL"].removeprefix("redis+socket://")
    ) as redis:
        redis.flushall()
    go()
    assert_ended_well(grid, customer, job_id)


def test_worker__killed_while_submitting__the_job_in_slurm_is_adopted(
    grid: Grid, customer: Account
) -> None:
    """As if the worker had died between sbatch and the commit of its answer: SLURM has
    the job, the ledger does not.
    """
    fleet = grid.fleet
    grid.processes.kill(fleet.find("beat"))
    # else a poll may have seen it run by then, and more than its id would have to be
    # undone
    with nodes_drained(grid):
        job_id = grid.submit_script(customer, "#!/bin/bash\nsleep 20\necho done\n")
        fleet.start_beat()
        until(grid, job_id, "Submitted")
        grid.processes.kill(fleet.find("worker"))
        with ledger(grid) as engine, engine.begin() as connection:
            connection.execute(
                text(
                    "UPDATE jobs SET state = 'SUBMITTING', slurm_id = NULL WHERE job_id = :id"
                ),
                {"id": job_id},
            )
            connection.execute(
                text(
                    "UPDATE effects SET kind = 'submit', lease = NULL WHERE job_id = :id AND done_at IS NULL"
                ),
                {"id": job_id},
            )
    fleet.start_worker()
    assert_ended_well(grid, customer, job_id)


def test_callbacks_process__killed__the_spool_delivers_later(
    grid: Grid, customer: Account
) -> None:
    job_id, go = gated(grid, customer)
    until(grid, job_id, "Submitted")
    fleet = grid.fleet
    grid.processes.kill(fleet.find("callbacks"))
    go()
    wait_for(grid, job_id, {ChainStatus.RUNNING, ChainStatus.FINISHED})
    fleet.start_callbacks()
    assert_ended_well(grid, customer, job_id)
    wait_until(
        lambda: (
            rows(
                grid,
                "SELECT count(*) AS n FROM callbacks WHERE job_id = :id",
                id=job_id,
            )[0].n
            == 2
        ),
        "both callbacks in the ledger",
        20.0,
        0.1,
    )
