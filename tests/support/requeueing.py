"""Jobs that SLURM runs more than once, and what each of their runs took."""

import time

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.processes import wait_until
from tests.support.end_states import PATIENCE_S, as_customer, record_of, wait_for_state
from tests.support.grid_assertions import slurm_of

SETTLED_AFTER_S = 4.0  # after the requeue; by then the node has ended the old run


def requeue(grid: Grid, customer: Account, slurm_id: int) -> int:
    """Requeue a job as its owner, which the job itself can do, too. Returns the start
    time of the run that this ends.
    """
    start_s = int(shown(grid, slurm_id, "StartTime"))
    as_customer(grid, customer, "scontrol", "update", f"JobId={slurm_id}", "Requeue=1")
    as_customer(grid, customer, "scontrol", "requeue", str(slurm_id))
    wait_for_state(grid, slurm_id, "PENDING")
    return start_s


def begin_again(grid: Grid, slurm_id: int) -> None:
    """Start a requeued job again, and wait until it runs.

    SLURM would hold it for two minutes; StartTime=now ends that. The node must have
    ended the old run first: if the order to end it arrives in the same second, the node
    refuses the new run, or that fails.
    """

    settled_after_s = deadline(SETTLED_AFTER_S)

    def is_running() -> bool:
        record = record_of(grid, slurm_id)
        state = record.state
        if state == "PENDING" and time.time() >= record.submit_s + settled_after_s:
            slurm_of(grid).run(
                "scontrol", "update", f"JobId={slurm_id}", "StartTime=now"
            )
        if state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            raise AssertionError(
                slurm_of(grid).run("scontrol", "show", "job", str(slurm_id)).stdout
            )
        return state == "RUNNING"

    wait_until(is_running, f"{slurm_id} to run again", PATIENCE_S, 1.0)


def shown(grid: Grid, slurm_id: int, field: str) -> str:
    """A field of a job, as squeue prints it."""
    argv = (
        "env",
        "SLURM_TIME_FORMAT=%s",
        "squeue",
        "--noheader",
        "--states=all",
        f"--jobs={slurm_id}",
    )
    return slurm_of(grid).run(*argv, f"--Format={field}:0").stdout.strip()


def seconds_of_runs(grid: Grid, slurm_id: int) -> list[tuple[str, int]]:
    """State and seconds at the end of each run, as SLURM's completion hook recorded
    them.
    """
    return [(run[1], int(run[4]) - int(run[3])) for run in _completed(grid, slurm_id)]


def first_start_s(grid: Grid, slurm_id: int) -> int:
    """When the first run began (Unix time), by SLURM's completion hook."""
    return int(_completed(grid, slurm_id)[0][3])


def _completed(grid: Grid, slurm_id: int) -> list[list[str]]:
    """What the completion hook recorded at the end of each run."""
    lines = (slurm_of(grid).layout.folder / "completed").read_text().splitlines()
    runs = [line.split("|") for line in lines]
    return [run for run in runs if run[0] == str(slurm_id)]


def wait_for_seconds(grid: Grid, slurm_id: int, seconds: int) -> None:
    """Wait until the present run has taken so long."""
    wait_until(
        lambda: record_of(grid, slurm_id).elapsed_s >= seconds,
        f"a run of {seconds} s",
        PATIENCE_S + seconds,
        0.2,
    )
