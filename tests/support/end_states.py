"""Makes jobs end in different ways in SLURM, and compares ledger and contract with
SLURM's own record.
"""

import os
import subprocess
from dataclasses import dataclass
from typing import Any

from devgrid.chain.model import Account, ChainPrices
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from supervisor_tasks.slurm.parsers import wait_status
from tests.support.grid_assertions import (
    journal,
    rows,
    slurm_of,
    wait_for,
    wait_for_end,
)
from tests.support.slurm_records import seconds_of

PATIENCE_S = 90.0


@dataclass(frozen=True, slots=True)
class Record:
    """SLURM's own record of a job."""

    state: str
    elapsed_s: int
    node: str
    submit_s: int
    exit_code: int


def as_customer(grid: Grid, customer: Account, *argv: str, stdin: str = "") -> str:
    """Run one of SLURM's commands as the customer's Linux user. It must succeed.
    Returns its output.
    """
    done = run_as_customer(grid, customer, *argv, stdin=stdin)
    assert done.returncode == 0, (argv, done.stderr)
    return done.stdout.strip()


def run_as_customer(
    grid: Grid, customer: Account, *argv: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run one of SLURM's commands as the customer's Linux user. Its exit status is not
    checked.
    """
    uid = grid.users.add(customer.address)
    return subprocess.run(
        argv,
        input=stdin,
        env={**os.environ, **slurm_of(grid).env()},
        cwd=grid.users.home(customer.address),
        user=uid,
        group=uid,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=deadline(60),
    )


def scontrol(grid: Grid, *words: str) -> None:
    """Run scontrol as the admin. It must succeed."""
    done = slurm_of(grid).run("scontrol", *words)
    assert done.returncode == 0, (words, done.stdout, done.stderr)


def own_job(grid: Grid, customer: Account, script: str, *options: str) -> int:
    """Submit a job as the customer, without the supervisor. Returns its SLURM id."""
    short = ("--time=5", "--mem-per-cpu=50M", "--output=/dev/null")
    return int(
        as_customer(
            grid,
            customer,
            "sbatch",
            "--parsable",
            *short,
            *options,
            stdin=f"#!/bin/bash\n{script}\n",
        )
    )


def id_of(grid: Grid, job_id: str) -> int:
    """The SLURM id of a job, once the ledger has it."""
    wait_until(
        lambda: "Submitted" in journal(grid, job_id),
        f"{job_id} to be submitted",
        PATIENCE_S,
        0.1,
    )
    number: int = row_of(grid, job_id).slurm_id
    return number


def wait_for_first_look(grid: Grid, job_id: str) -> None:
    """Wait until a look of the worker has identified the job in SLURM."""
    wait_until(
        lambda: "SlurmJobIdentified" in journal(grid, job_id), "a look", PATIENCE_S, 0.1
    )


def running(grid: Grid, job_id: str) -> int:
    """The SLURM id of a job, once it is RUNNING on the contract."""
    wait_for(grid, job_id, {ChainStatus.RUNNING}, PATIENCE_S)
    return id_of(grid, job_id)


def row_of(grid: Grid, job_id: str) -> Any:
    """The row of a job in the ledger."""
    return rows(grid, "SELECT * FROM jobs WHERE job_id = :id", id=job_id)[0]


def record_of(grid: Grid, slurm_id: int) -> Record:
    """What squeue shows of a job."""
    fields = "State:30,TimeUsed:30,SubmitTime:30,exit_code:30,NodeList:30"
    argv = (
        "env",
        "SLURM_TIME_FORMAT=%s",
        "squeue",
        "--noheader",
        "--states=all",
        f"--jobs={slurm_id}",
    )
    state, used, submitted, exit_code, *nodes = (
        slurm_of(grid).run(*argv, f"--Format={fields}").stdout.split()
    )
    return Record(
        state,
        seconds_of(used),
        nodes[0] if nodes else "",
        int(submitted),
        wait_status(exit_code),
    )


def wait_for_state(grid: Grid, slurm_id: int, *states: str) -> Record:
    """SLURM's record of a job, once it is in one of these states."""
    wait_until(
        lambda: record_of(grid, slurm_id).state in states,
        f"{slurm_id} to be {states}",
        PATIENCE_S,
        0.1,
    )
    return record_of(grid, slurm_id)


def assert_overrun_is_billed(grid: Grid, job_id: str) -> None:
    """Assert that a job with a limit of a minute, which SLURM ends after some 80 s, is
    OUT_OF_CREDITS and pays the minute.
    """
    job = wait_for_end(grid, job_id, timeout_s=150)
    assert job.status is ChainStatus.OUT_OF_CREDITS
    row = row_of(grid, job_id)
    assert row.elapsed_s == record_of(grid, row.slurm_id).elapsed_s
    assert row.elapsed_s // 60 == 1
    assert job.final_cost_wei == ChainPrices().of(job.definition)


def assert_ended(
    grid: Grid,
    job_id: str,
    state: str,
    status: ChainStatus,
    exit_status: int | None = 0,
) -> Record:
    """Assert that the contract has the status, the minutes and the exit status that
    belong to SLURM's end state. If `exit_status` is None, the one that squeue shows is
    expected.
    """
    job = wait_for_end(grid, job_id, PATIENCE_S)
    row = rows(
        grid,
        "SELECT slurm_id, elapsed_s, exit_status FROM jobs WHERE job_id = :id",
        id=job_id,
    )[0]
    record = record_of(grid, row.slurm_id)
    exit_status = record.exit_code if exit_status is None else exit_status
    assert (record.state, job.status, job.exit_code) == (state, status, exit_status)
    assert (row.elapsed_s, row.exit_status) == (record.elapsed_s, exit_status)
    assert job.final_cost_wei == record.elapsed_s // 60 * ChainPrices().of(
        job.definition
    )
    return record


def assert_home_without_write_permission_fails_the_job(grid: Grid) -> None:
    """Assert that a job whose output file cannot be made costs nothing, that the
    customer learns why, and that its node goes on.
    """
    owner = grid.new_customer()
    grid.users.home(owner.address.lower()).chmod(0o500)
    job_id = grid.submit_script(owner, "#!/bin/bash\nsleep 1\n")
    assert_ended(grid, job_id, "FAILED", ChainStatus.FAILED, None)
    error = grid.chain.job(job_id).last_error
    assert error.startswith("SLURM could not open the output file")
    assert "LaunchFailed" not in journal(grid, job_id)
    states = slurm_of(grid).run("sinfo", "--noheader", "--format=%T").stdout.split()
    assert not [state for state in states if "drain" in state]
