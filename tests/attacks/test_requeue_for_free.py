"""A customer's job requeues itself: SLURM begins a new run with a new time limit, and
shows only the last run.

This site has no job_submit.lua, and no accounting (in `make attacks` also with it).
Beside the owner, an administrator requeues jobs. A resize begins no new run, but a new
part for SLURM's completion hook.
"""

import time
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from devgrid.chain.model import Account, ChainPrices
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.end_states import (
    PATIENCE_S,
    as_customer,
    id_of,
    record_of,
    row_of,
    run_as_customer,
    running,
    scontrol,
    wait_for_state,
)
from tests.support.grid_assertions import journal, ledger, slurm_of, wait_for_end
from tests.support.grids import served_grid
from tests.support.marks import in_chaos
from tests.support.requeueing import (
    SETTLED_AFTER_S,
    begin_again,
    requeue,
    seconds_of_runs,
    shown,
    wait_for_seconds,
)

PAID_MIN = 2


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, id="no accounting"), in_chaos(True, id="accounting")],
)
def grid(request: pytest.FixtureRequest) -> Iterator[Grid]:
    # SLURM forgets no job for a day, and the next sweep comes after a quarter of an
    # hour: only polls can find the requeue.
    with served_grid(
        GridOptions(min_job_age_s=86_400, accounting=request.param, job_submit=False)
    ) as running_grid:
        yield running_grid


def as_if_the_first_run_had_taken(grid: Grid, job_id: str, seconds: int) -> None:
    """Make the first run look half an hour long, and the next poll due."""
    longer = """
        UPDATE jobs SET runs = jsonb_set(jsonb_set(runs, '{0,elapsed_s}', to_jsonb(CAST(:s AS int))), '{0,exact}', 'true')
        WHERE job_id = :id
        """
    hurried = "UPDATE effects SET due_at = now() WHERE job_id = :id AND kind = 'poll_slurm' AND done_at IS NULL"
    with ledger(grid) as engine, engine.begin() as connection:
        connection.execute(text(longer), {"s": seconds, "id": job_id})
        connection.execute(text(hurried), {"id": job_id})


def test_requeue__by_the_owner__all_runs_are_billed_and_the_next_gets_what_is_left(
    grid: Grid, customer: Account
) -> None:
    gate = grid.users.home(customer.address) / "enough"
    job_id = grid.submit_script(
        customer,
        f"#!/bin/bash\nuntil [ -e ~/{gate.name} ]; do sleep 0.1; done\n",
        minutes=PAID_MIN,
    )
    slurm_id = running(grid, job_id)
    wait_for_seconds(grid, slurm_id, 6)
    start_s = requeue(grid, customer, slurm_id)
    wait_until(
        lambda: len(row_of(grid, job_id).runs) == 2,
        "a look at the second run",
        PATIENCE_S,
        0.1,
    )
    most_s = record_of(grid, slurm_id).submit_s - start_s
    assert 6 <= row_of(grid, job_id).runs[0]["elapsed_s"] <= most_s
    # The time of the first run is used up; the limit in SLURM is in whole minutes.
    as_customer(
        grid, customer, "scontrol", "update", f"JobId={slurm_id}", "TimeLimit=1"
    )
    begin_again(grid, slurm_id)
    wait_for_seconds(grid, slurm_id, 3)
    gate.touch()
    assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.FINISHED
    row = row_of(grid, job_id)
    ends = seconds_of_runs(grid, slurm_id)
    states = [state for state, _ in ends]
    del ends[states.index("COMPLETED") + 1 :]  # after that, SLURM must not requeue it
    # the first run counts until SLURM queues the job again
    (_, first_s), *_ = ends
    all_s = sum(seconds for _, seconds in ends)
    assert all_s <= row.elapsed_s <= all_s - first_s + most_s, (ends, row.runs)


def test_requeue__by_an_administrator__next_run_gets_and_uses_the_paid_time_left(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, "#!/bin/bash\nsleep 600\n", minutes=60)
    slurm_id = running(grid, job_id)
    scontrol(grid, "update", f"JobId={slurm_id}", "Requeue=1")
    scontrol(grid, "requeue", str(slurm_id))
    wait_until(
        lambda: len(row_of(grid, job_id).runs) == 2,
        "a look at the second run",
        PATIENCE_S,
        0.1,
    )
    as_if_the_first_run_had_taken(grid, job_id, 1800)
    wait_until(
        lambda: shown(grid, slurm_id, "TimeLimit") == "30:00",
        "the rest of the paid time",
        PATIENCE_S,
        0.2,
    )
    as_if_the_first_run_had_taken(grid, job_id, 3600)
    job = wait_for_end(grid, job_id, PATIENCE_S)
    assert job.status is ChainStatus.OUT_OF_CREDITS
    # accounting has the first run's own seconds, and bills them in place of the ledger's
    has_accounting = grid.environment["SLURM_ACCOUNTING"] == "true"
    billed_min = 0 if has_accounting else 60
    assert job.final_cost_wei == billed_min * ChainPrices().of(job.definition)
    assert "60 minutes" in job.last_error


def test_requeue__after_the_jobs_end__slurm_rejects_it(
    grid: Grid, customer: Account
) -> None:
    again = "#!/bin/bash\nscontrol update JobId=$SLURM_JOB_ID Requeue=1\n[ -z $SLURM_RESTART_COUNT ] || sleep 300\n"
    job_id = grid.submit_script(customer, again, minutes=PAID_MIN)
    slurm_id = id_of(grid, job_id)
    assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.FINISHED
    wait_until(
        lambda: shown(grid, slurm_id, "Requeue") == "0",
        "SLURM to be told",
        PATIENCE_S,
        0.1,
    )
    wait_for_state(grid, slurm_id, "CANCELLED")
    asked = run_as_customer(grid, customer, "scontrol", "requeue", str(slurm_id))
    changed = run_as_customer(
        grid, customer, "scontrol", "update", f"JobId={slurm_id}", "Requeue=1"
    )
    assert "disabled" in asked.stderr
    assert "finished" in changed.stderr
    assert record_of(grid, slurm_id).state == "CANCELLED"
    assert row_of(grid, job_id).elapsed_s < 60


@pytest.mark.chaos
def test_requeue__by_the_job_itself_without_end__gets_what_was_paid_for_and_no_more(
    grid: Grid, customer: Account
) -> None:
    again = "#!/bin/bash\nsleep 75\nscontrol update JobId=$SLURM_JOB_ID Requeue=1\nscontrol requeue $SLURM_JOB_ID\nsleep 300\n"
    job_id = grid.submit_script(customer, again, minutes=PAID_MIN)
    slurm_id, began_s = id_of(grid, job_id), time.monotonic()
    ended = (
        ChainStatus.OUT_OF_CREDITS,
        ChainStatus.FINISHED,
        ChainStatus.CANCELLED,
        ChainStatus.FAILED,
    )

    settled_after_s = deadline(SETTLED_AFTER_S)

    def is_over() -> bool:
        record = record_of(grid, slurm_id)
        settled = (
            time.time() >= record.submit_s + settled_after_s
        )  # by then the node has ended the last run, as in begin_again
        if (
            record.state == "PENDING"
            and settled
            and "Begin" in shown(grid, slurm_id, "Reason")
        ):
            slurm_of(grid).run(
                "scontrol", "update", f"JobId={slurm_id}", "StartTime=now"
            )
        return grid.chain.job(job_id).status in ended

    wait_until(is_over, "the end", 400.0, 0.5)
    job = grid.chain.job(job_id)
    assert job.status is ChainStatus.OUT_OF_CREDITS
    assert job.final_cost_wei == PAID_MIN * ChainPrices().of(job.definition)
    assert row_of(grid, job_id).elapsed_s >= PAID_MIN * 60
    # SLURM's limits are whole minutes, and the next look comes within 30 s
    taken_s = sum(seconds for _, seconds in seconds_of_runs(grid, slurm_id))
    assert taken_s <= PAID_MIN * 60 + 59 + deadline(30)
    assert time.monotonic() - began_s < deadline(300)
    assert "SlurmCompleted" in journal(grid, job_id)


def test_resize__owner_cancels_the_job_after_it__all_of_its_seconds_are_billed(
    grid: Grid, customer: Account
) -> None:
    """SLURM shows our hook 0 s at the resize, and then the seconds since it."""
    job_id = grid.submit_script(
        customer, "#!/bin/bash\nsleep 600\n", minutes=PAID_MIN, tasks=2, cpusPerTask=5
    )
    slurm_id = running(grid, job_id)
    wait_for_seconds(grid, slurm_id, 12)
    as_customer(grid, customer, "scontrol", "update", f"JobId={slurm_id}", "NumNodes=1")
    as_customer(grid, customer, "scancel", str(slurm_id))
    job = wait_for_end(grid, job_id, PATIENCE_S)
    assert job.status is ChainStatus.CANCELLED
    assert row_of(grid, job_id).elapsed_s >= 12
    assert [state for state, _ in seconds_of_runs(grid, slurm_id)] == [
        "RESIZING",
        "CANCELLED",
    ]
