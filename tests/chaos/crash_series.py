"""A series of crash runs: prints each one with the time that is left, and a summary at
the end.
"""

from collections.abc import Sequence
from pathlib import Path

from devgrid.options import Transport
from tests.chaos.artifacts import keep
from tests.chaos.crashes import CrashTestGrid
from tests.support.chaos_report import CrashSeries, Run

BATCH = 25
MAX_SHOWN = 300  # characters of an error; the rest is in the logs


def run_all(
    runs: Sequence[Run], logs: Path, transport: Transport = "ssh"
) -> CrashSeries:
    """Run them one after another, a batch on each grid with that way to SLURM. If a job
    hangs, the logs of its grid are kept, and the next run gets a new grid.
    """
    series = CrashSeries(len(runs), transport)
    left = list(runs)
    while left:
        done = _run_batch(left[:BATCH], series, logs)
        left = left[done:]
    return series


def _run_batch(runs: Sequence[Run], series: CrashSeries, logs: Path) -> int:
    """Run them on one grid. Returns how many were run: fewer than all if a job
    hangs.
    """
    seeds = f"seeds {runs[0].seed} to {runs[-1].seed}"
    with CrashTestGrid.start(
        workers=1 + len(series.outcomes) // BATCH % 2, transport=series.transport
    ) as crash_grid:
        crash_grid.submit_long_jobs()
        try:
            for run in runs:
                seeds = f"seed {run.seed}"
                series.add(crash_grid.kill(run))
                series.add_violations(seeds, crash_grid.check())
            seeds = f"seeds {runs[0].seed} to {runs[-1].seed}"
            series.add_violations(seeds, crash_grid.finish())
        except (TimeoutError, AssertionError) as error:
            # the first line of both names what was waited for
            keep(crash_grid.grid, logs / f"seed-{run.seed}")
            reason = str(error).partition("\n")[0][:MAX_SHOWN]
            series.add_violations(
                seeds, [f"{reason}; logs and ledger are in {logs / f'seed-{run.seed}'}"]
            )
            return runs.index(run) + 1
    return len(runs)
