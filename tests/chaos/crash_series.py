"""A series of crash runs: prints each one with the time that is left, and a summary at
the end.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from devgrid.options import Transport
from tests.chaos.artifacts import keep
from tests.chaos.crashes import PLACES, CrashTestGrid, Outcome, Run

BATCH = 25
MAX_SHOWN = 300  # characters of an error; the rest is in the logs


@dataclass(slots=True)
class CrashSeries:
    """The results of a series of crash runs."""

    runs: int
    transport: Transport = "ssh"
    began_s: float = field(default_factory=time.monotonic)
    outcomes: list[Outcome] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Record a run, and print it with the progress of the series."""
        self.outcomes.append(outcome)
        done = len(self.outcomes)
        left_s = (time.monotonic() - self.began_s) / done * (self.runs - done)
        show(f"{done:4} of {self.runs}, {left_s / 60:3.0f} min to go: {outcome}")

    def add_violations(self, runs: str, lines: Sequence[str]) -> None:
        """Record and print the violations. `runs` names the runs after which they were
        found. Each line is recorded once: the audit reports a violation again after
        every later run on the same grid.
        """
        for line in [
            line
            for line in lines
            if not any(line in violation for violation in self.violations)
        ]:
            show(f"     WRONG {runs}: {line}")
            self.violations.append(f"{runs}: {line}")

    def summary(self) -> list[str]:
        """The lines of the summary: how many deaths at which place, the places that
        were not reached, the violations.
        """
        reached = Counter(
            outcome.run.place for outcome in self.outcomes if outcome.reached
        )
        missed = {outcome.run.place for outcome in self.outcomes} - reached.keys()
        failures = [f"never reached: {place}" for place in sorted(missed)]
        failures += [f"WRONG {line}" for line in self.violations]
        deaths = f"{sum(reached.values())} deaths in {len(self.outcomes)} runs, at {len(reached)} of {len(PLACES)} places"
        return [
            f"crash runs: {deaths}; {len(self.violations)} violations; {(time.monotonic() - self.began_s) / 60:.0f} min",
            *(
                f"    {reached[place]:4} at {place}"
                for place in PLACES
                if reached[place]
            ),
            *(f"    {line}" for line in failures),
        ]

    @property
    def passed(self) -> bool:
        """Whether the audit found no violation and each place that was tried was
        reached.
        """
        reached = {outcome.run.place for outcome in self.outcomes if outcome.reached}
        return not self.violations and reached == {
            outcome.run.place for outcome in self.outcomes
        }


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


def show(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)
