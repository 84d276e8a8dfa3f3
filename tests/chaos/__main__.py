"""`make chaos`: kills processes where they change the world; then runs the long tests,
such as each fault under a load.

Each line shows the progress. It goes on after a failure. The summary at the end lists
all failures with their seeds.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

from devgrid.options import Transport
from tests.chaos.crash_series import run_all
from tests.chaos.crashes import plan
from tests.support.chaos_report import PLACES, LongTest, read_report, show

REPOSITORY = Path(__file__).parents[2]
BUILT = REPOSITORY / "build" / "chaos"
RUNS = 200
PARALLEL_FILES = "2"  # of long tests; most of them wait most of the time


def main() -> None:
    """Run what the options select, and end with status 1 if anything fails."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument(
        "--runs",
        type=int,
        help=f"number of crash runs, and no long tests (default: {RUNS}, then all long tests)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="seed of the first crash run; the next runs count up; no long tests",
    )
    parser.add_argument(
        "--point", choices=PLACES, help="kill at this place only; no long tests"
    )
    parser.add_argument(
        "--transport",
        choices=get_args(Transport),
        help="the way to SLURM of the crash runs (default: ssh); no long tests",
    )
    parser.add_argument(
        "--long",
        metavar="WORDS",
        help="run only the long tests that pytest -k selects by these words; '' selects all",
    )
    options = parser.parse_args()
    crashes_only = any(
        given is not None
        for given in (options.runs, options.seed, options.point, options.transport)
    )
    lines: list[str] = []
    passed = True
    if options.long is None:
        passed, summary = crash_runs(
            options.runs or RUNS,
            options.seed,
            options.point,
            options.transport or "ssh",
        )
        lines += summary
    if not crashes_only:
        tests = long_tests(options.long or "")
        passed = (
            passed and bool(tests) and all(test.outcome == "passed" for test in tests)
        )
        lines += [
            f"long tests: {len(tests)}, {sum(test.outcome == 'passed' for test in tests)} of them passed"
        ]
        lines += [f"    {test}" for test in tests]
    show("\n".join(["", *lines, "", "ALL RIGHT" if passed else "SOMETHING IS WRONG"]))
    sys.exit(0 if passed else 1)


def crash_runs(
    runs: int, seed: int | None, point: str | None, transport: Transport
) -> tuple[bool, list[str]]:
    """Run the crash runs. Returns whether all passed, and the lines of their
    summary.
    """
    first = random.SystemRandom().randrange(10**6) if seed is None else seed
    show(
        f"{runs} crash runs from seed {first} on; one alone: make chaos RUNS=1 SEED=<its seed>"
    )
    series = run_all(
        [plan(number, point) for number in range(first, first + runs)],
        BUILT,
        transport,
    )
    return series.passed, series.summary()


def long_tests(words: str) -> list[LongTest]:
    """Run the tests that are marked `chaos` and that `pytest -k` selects by these
    words.
    """
    show(
        f"the long tests; one alone: make chaos LONG='words of its name'; their output is in {BUILT / 'long.log'}"
    )
    BUILT.mkdir(parents=True, exist_ok=True)
    report = BUILT / "long.xml"
    report.unlink(missing_ok=True)
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "--chaos",
        "-m",
        "chaos",
        "-k",
        words,
        "-v",
        "-n",
        PARALLEL_FILES,
        "--dist",
        "loadfile",
    ]
    argv += [f"--junit-xml={report}", "tests"]
    began_s = time.monotonic()
    with (BUILT / "long.log").open("w") as log:
        running = subprocess.Popen(
            argv,
            cwd=REPOSITORY,
            env={**os.environ, "COLUMNS": "160"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert running.stdout is not None
        for line in running.stdout:
            log.write(line)
            if " PASSED " in line or " FAILED " in line or " ERROR " in line:
                show(f"{(time.monotonic() - began_s) / 60:4.0f} min {line.strip()}")
        running.wait()
    return read_report(report.read_text()) if report.exists() else []


if __name__ == "__main__":
    main()
