"""Jobs that SLURM runs more than once, and what each of their runs took."""

import time

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.processes import wait_until
from tests.support.end_states import PATIENCE_S, as_customer, record_of, wait_for_state
from tests.support.watching import slurm_of

SETTLED_AFTER_S = 4.0  # since the requeue: the node has ended the run before it


def requeue(grid: Grid, customer: Account, slurm_id: int) -> int:
    """What the job itself can do as its owner; returns when SLURM began the run that this ends."""
    start_s = int(shown(grid, slurm_id, "StartTime"))
    as_customer(grid, customer, "scontrol", "update", f"JobId={slurm_id}", "Requeue=1")
    as_customer(grid, customer, "scontrol", "requeue", str(slurm_id))
    wait_for_state(grid, slurm_id, "PENDING")
    return start_s


def begin_again(grid: Grid, slurm_id: int) -> None:
    """SLURM keeps a requeued job for two minutes, unless it is told that it may begin. The node refuses the new run, or has it
    fail, when the word to end the last one reaches it in the same second.
    """

    def runs() -> bool:
        record = record_of(grid, slurm_id)
        state = record.state
        if state == "PENDING" and time.time() >= record.submit_s + SETTLED_AFTER_S:
            slurm_of(grid).run("scontrol", "update", f"JobId={slurm_id}", "StartTime=now")
        if state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            raise AssertionError(slurm_of(grid).run("scontrol", "show", "job", str(slurm_id)).stdout)
        return state == "RUNNING"

    wait_until(runs, f"{slurm_id} to run again", PATIENCE_S, 1.0)


def shown(grid: Grid, slurm_id: int, field: str) -> str:
    """A field of a job, as squeue prints it."""
    argv = ("env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", "--states=all", f"--jobs={slurm_id}")
    return slurm_of(grid).run(*argv, f"--Format={field}:0").stdout.strip()


def seconds_of_runs(grid: Grid, slurm_id: int) -> list[tuple[str, int]]:
    """State and seconds at the end of each run, as SLURM told its completion hook."""
    lines = (slurm_of(grid).layout.folder / "completed").read_text().splitlines()
    told = [line.split("|") for line in lines]
    return [(words[1], int(words[4]) - int(words[3])) for words in told if words[0] == str(slurm_id)]


def wait_for_seconds(grid: Grid, slurm_id: int, seconds: int) -> None:
    """Wait until the present run has taken so long."""
    wait_until(
        lambda: record_of(grid, slurm_id).elapsed_s >= seconds, f"a run of {seconds} s", PATIENCE_S + seconds, 0.2
    )
