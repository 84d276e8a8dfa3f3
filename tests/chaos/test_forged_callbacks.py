"""Thousands of forged callbacks at random change no bill, and cause no scancel."""

from collections.abc import Iterator
from itertools import islice

import pytest

from devgrid.chain.model import Account, ChainPrices
from devgrid.grid import Grid
from devgrid.processes import wait_until
from protos.supervisor.v1alpha1.supervisor_pb2 import SetJobStatusRequest
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.forged_callbacks import ANSWERS, forged_callbacks, send
from tests.support.grid_assertions import (
    parked,
    rows,
    slurm_ids,
    slurm_of,
    sweep,
    wait_for_end,
)
from tests.support.marks import in_chaos

FORGED = 1_000
MANY_FORGED = 10_000
SEED = 20261121
TRIES = 5
ENDS = {0: ChainStatus.FINISHED, 3: ChainStatus.FAILED}


def events(grid: Grid, name: str) -> list[str]:
    return [
        row.job_id
        for row in rows(grid, "SELECT job_id FROM events WHERE name = :name", name=name)
    ]


def send_next(grid: Grid, series: Iterator[SetJobStatusRequest], number: int) -> None:
    answers = send(grid, list(islice(series, number)), TRIES)
    assert {"OK", "INVALID_ARGUMENT"} <= set(answers) <= ANSWERS, answers


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [FORGED, in_chaos(MANY_FORGED)])
def test_forged_callbacks__of_all_kinds_at_all_times__change_nothing(
    grid: Grid, customer: Account, number: int
) -> None:
    long = grid.submit_script(customer, "#!/bin/bash\nsleep 62\n")  # a minute to bill
    settled = [
        grid.submit_script(customer, f"#!/bin/bash\nexit {code}\n") for code in ENDS
    ]
    series = forged_callbacks(SEED, [long, *settled], range(1, 10))
    send_next(grid, series, number // 10)  # before any job is submitted
    for job_id in settled:
        wait_for_end(grid, job_id)
    wait_until(
        lambda: long in events(grid, "SlurmRunningObserved"),
        "the long job to run",
        60.0,
        0.1,
    )
    slurm = slurm_of(grid)
    # jobs wait from now on
    slurm.run("scontrol", "update", "nodename=node[1-4]", "state=drain", "reason=test")
    waiting = {
        grid.submit_script(customer, f"#!/bin/bash\nsleep 5\nexit {code}\n"): end
        for code, end in ENDS.items()
    }
    wait_until(
        lambda: set(waiting) <= set(events(grid, "Submitted")),
        "SLURM to have the jobs",
        60.0,
        0.1,
    )
    job_ids = [long, *settled, *waiting]
    series = forged_callbacks(
        SEED,
        job_ids,
        [slurm_id for job_id in job_ids for slurm_id in slurm_ids(grid, job_id)],
    )
    send_next(grid, series, number // 2)
    assert not set(waiting) & set(events(grid, "SlurmCompleted"))
    assert not set(waiting) & set(events(grid, "SlurmRunningObserved"))
    slurm.run("scontrol", "update", "nodename=node[1-4]", "state=resume")
    # Not SlurmRunningObserved: after the forged callbacks, the polls are up to 30 s
    # apart, and SLURM may run and end the jobs between two.
    wait_until(
        lambda: all(has_begun(grid, job_id) for job_id in waiting),
        "SLURM to begin the jobs",
        60.0,
        0.1,
    )
    send_next(grid, series, number // 5)
    for job_id, end in waiting.items():
        job = wait_for_end(grid, job_id)
        assert (job.status, job.final_cost_wei) == (end, 0)
    sweep(grid)
    send_next(grid, series, number // 5)
    job = wait_for_end(grid, long, 120.0)
    assert (job.status, job.final_cost_wei) == (
        ChainStatus.FINISHED,
        ChainPrices().of(job.definition),
    )
    wait_until(lambda: unread(grid) == 0, "the stored callbacks to be read", 60.0, 0.1)
    assert_as_slurm_says(grid, job_ids)
    assert parked(grid) == []
    assert [job_id for job_id in job_ids if len(slurm_ids(grid, job_id)) != 1] == []
    assert (
        "REQUEST_KILL_JOB" not in (grid.folder / "slurm" / "slurmctld.log").read_text()
    )  # slurmctld logs each scancel so


def has_begun(grid: Grid, job_id: str) -> bool:
    """Whether SLURM has given the job its node."""
    shown = slurm_of(grid).run(
        "squeue", "--noheader", "--states=all", f"--name={job_id}", "--format=%T"
    )
    return shown.stdout.split() not in ([], ["PENDING"])


def unread(grid: Grid) -> int:
    count: int = rows(
        grid, "SELECT count(*) AS n FROM callbacks WHERE read_at IS NULL"
    )[0].n
    return count


def assert_as_slurm_says(grid: Grid, job_ids: list[str]) -> None:
    """Assert that seconds and exit status in the ledger are SLURM's own, and that no
    job was cancelled.
    """
    for job_id in job_ids:
        shown = slurm_of(grid).run(
            "squeue",
            "--noheader",
            "--states=all",
            f"--name={job_id}",
            "--Format=State:20,TimeUsed:20,exit_code:20",
        )
        state, used, exit_code = shown.stdout.split()
        row = rows(
            grid,
            "SELECT elapsed_s, exit_status FROM jobs WHERE job_id = :id",
            id=job_id,
        )[0]
        minutes, _, seconds = used.rpartition(":")
        assert state in ("COMPLETED", "FAILED")
        assert (row.elapsed_s, row.exit_status) == (
            int(minutes) * 60 + int(seconds),
            int(exit_code),
        ), job_id
