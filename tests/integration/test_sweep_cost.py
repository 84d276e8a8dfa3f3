"""What a sweep and the witness ask of SLURM and of the chain does not grow with the number of jobs."""

from devgrid.grid import Grid
from tests.load.sweep import measure

JOBS, MISSING, CALLBACKS = 700, 50, 200


def test_many_jobs__few_commands_and_requests() -> None:
    grid = Grid.start(block_time_s=0.25)
    try:
        sweeps, witness = measure(grid, JOBS, MISSING, CALLBACKS, sweeps=1)
    finally:
        grid.stop()
    all_well, some_missing = sweeps
    assert (all_well.commands, some_missing.commands) == (
        1,
        2,
    )  # slurmctld, and accounting for those that it does not list
    assert max(all_well.requests, some_missing.requests) <= 20
    assert witness.commands == 1
