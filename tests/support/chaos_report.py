"""What `make chaos` prints: each crash run with the time that is left, the summary of
their series, and the results of the long tests.
"""

import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from devgrid.options import Transport
from supervisor_tasks.crash_points import CrashPoint

PLACES = tuple(
    f"{side}-{point}" for point in CrashPoint for side in ("before", "after")
)


@dataclass(frozen=True, slots=True)
class Run:
    """What a seed determines: the place, at which pass of it the process dies
    (`count`), and the kinds of jobs.
    """

    seed: int
    place: str
    count: int
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    run: Run
    reached: bool
    took_s: float
    dead: tuple[str, ...]

    def __str__(self) -> str:
        result = "killed " + " ".join(self.dead) if self.reached else "not reached"
        run = self.run
        return f"seed {run.seed} {run.place} x{run.count} {'+'.join(run.kinds)}: {result}, {self.took_s:.1f} s"


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
        recorded = list(self.violations)
        for line in lines:
            if any(line in violation for violation in recorded):
                continue
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


@dataclass(frozen=True, slots=True)
class LongTest:
    """The result of one long test: its outcome in a word, the seconds that it took, and
    the first line of its error.
    """

    name: str
    outcome: str
    took_s: float
    error: str = ""

    def __str__(self) -> str:
        error = f": {self.error}" if self.error else ""
        return f"{self.outcome:<8}{self.took_s:7.0f} s  {self.name}{error}"


def read_report(text: str) -> list[LongTest]:
    """Read the JUnit XML that pytest wrote: a result for each test, the failed ones
    last.
    """
    tests = [_long_test(case) for case in ET.fromstring(text).iter("testcase")]  # noqa: S314  our own file
    return sorted(tests, key=lambda test: test.outcome != "passed")


def _long_test(case: ET.Element) -> LongTest:
    bad = next(
        (child for child in case if child.tag in {"failure", "error", "skipped"}), None
    )
    outcome = (
        "passed"
        if bad is None
        else {"failure": "FAILED", "error": "ERROR", "skipped": "SKIPPED"}[bad.tag]
    )
    error = "" if bad is None else (bad.get("message") or "").partition("\n")[0][:200]
    return LongTest(
        case.get("name") or "?", outcome, float(case.get("time") or 0), error
    )


def show(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)
