"""Crash runs in a row: told one by one with the time that is left, and summed up at the end."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.artifacts import keep
from tests.chaos.crashes import PLACES, CrashTestGrid, Outcome, Run

BATCH = 25
MAX_SHOWN = 300  # characters of what was waited for; the rest is in the logs


@dataclass(slots=True)
class DiscrepancyKind:
    """What a series of runs has shown so far."""

    runs: int
    began_s: float = field(default_factory=time.monotonic)
    outcomes: list[Outcome] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Take note of a run and tell how far it is."""
        self.outcomes.append(outcome)
        done = len(self.outcomes)
        left_s = (time.monotonic() - self.began_s) / done * (self.runs - done)
        say(f"{done:4} of {self.runs}, {left_s / 60:3.0f} min to go: {outcome}")

    def wrong(self, about: str, lines: Sequence[str]) -> None:
        """Take note of what is wrong and tell it at once; a grid shows what it has shown before."""
        for line in [line for line in lines if not any(line in problem for problem in self.problems)]:
            say(f"     WRONG {about}: {line}")
            self.problems.append(f"{about}: {line}")

    def summary(self) -> list[str]:
        """The sum of it, for people: what died where, what was wrong, and how it is repeated."""
        reached = Counter(outcome.run.place for outcome in self.outcomes if outcome.reached)
        missed = {outcome.run.place for outcome in self.outcomes} - reached.keys()
        wrong = [f"never reached: {place}" for place in sorted(missed)] + [f"WRONG {line}" for line in self.problems]
        deaths = (
            f"{sum(reached.values())} deaths in {len(self.outcomes)} runs, at {len(reached)} of {len(PLACES)} places"
        )
        return [
            f"crash runs: {deaths}; {len(self.problems)} violations; {(time.monotonic() - self.began_s) / 60:.0f} min",
            *(f"    {reached[place]:4} at {place}" for place in PLACES if reached[place]),
            *(f"    {line}" for line in wrong),
        ]

    @property
    def right(self) -> bool:
        """Whether no job was wronged and each place that was tried was reached."""
        reached = {outcome.run.place for outcome in self.outcomes if outcome.reached}
        return not self.problems and reached == {outcome.run.place for outcome in self.outcomes}


def run_all(runs: Sequence[Run], logs: Path) -> DiscrepancyKind:
    """One after another, a batch on a grid. Where a job hangs the grid is given up, its logs are kept, and the next run gets
    a new one.
    """
    found = DiscrepancyKind(len(runs))
    left = list(runs)
    while left:
        done = _batch(left[:BATCH], found, logs)
        left = left[done:]
    return found


def _batch(runs: Sequence[Run], found: DiscrepancyKind, logs: Path) -> int:
    """How many of the runs were done on this grid."""
    about = f"seeds {runs[0].seed} to {runs[-1].seed}"
    with CrashTestGrid.made(workers=1 + len(found.outcomes) // BATCH % 2) as battlefield:
        battlefield.ask_for_long_jobs()
        try:
            for run in runs:
                about = f"seed {run.seed}"
                found.add(battlefield.kill(run))
                found.wrong(about, battlefield.check())
            about = f"seeds {runs[0].seed} to {runs[-1].seed}"
            found.wrong(about, battlefield.finish())
        except (TimeoutError, AssertionError) as error:  # both say what was waited for
            keep(battlefield.grid, logs / f"seed-{run.seed}")
            what = str(error).partition("\n")[0][:MAX_SHOWN]
            found.wrong(about, [f"{what}; logs and ledger are in {logs / f'seed-{run.seed}'}"])
            return runs.index(run) + 1
    return len(runs)


def say(line: str) -> None:
    """Show a line at once."""
    print(line, flush=True)
