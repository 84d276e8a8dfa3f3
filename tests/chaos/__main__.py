"""`make chaos`: processes die where the world changes; then every fault under a load of jobs, and what else takes minutes.

Each line says how far it is. It goes on after a failure, and ends with all that was found and how to repeat it.
"""

import argparse
import os
import random
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.crash_series import run_all, say
from tests.chaos.crashes import PLACES, plan

REPOSITORY = Path(__file__).parents[2]
BUILT = REPOSITORY / "build" / "chaos"
RUNS = 200
AT_ONCE = "2"  # files of long tests; most of them wait most of the time


@dataclass(frozen=True, slots=True)
class Proof:
    """One long test: its outcome in a word, the seconds that it took, and its error's first line."""

    name: str
    outcome: str
    took_s: float
    error: str = ""

    def __str__(self) -> str:
        more = f": {self.error}" if self.error else ""
        return f"{self.outcome:<8}{self.took_s:7.0f} s  {self.name}{more}"


def main() -> None:
    """Run what was asked for, and end with status 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument(
        "--runs", type=int, help=f"so many crash runs and nothing else; all is {RUNS} and the long half"
    )
    parser.add_argument("--seed", type=int, help="of the first crash run; the next ones count up")
    parser.add_argument("--point", choices=PLACES, help="die at this place only")
    parser.add_argument(
        "--long", metavar="WORDS", help="only the long tests that pytest -k takes for these words; all: ''"
    )
    options = parser.parse_args()
    crashes_only = any(given is not None for given in (options.runs, options.seed, options.point))
    lines: list[str] = []
    right = True
    if options.long is None:
        right, told = crash(options.runs or RUNS, options.seed, options.point)
        lines += told
    if not crashes_only:
        proofs = long_half(options.long or "")
        right = right and bool(proofs) and all(proof.outcome == "passed" for proof in proofs)
        lines += [f"long tests: {len(proofs)}, {sum(p.outcome == 'passed' for p in proofs)} of them passed"]
        lines += [f"    {proof}" for proof in proofs]
    say("\n".join(["", *lines, "", "ALL RIGHT" if right else "SOMETHING IS WRONG"]))
    sys.exit(0 if right else 1)


def crash(runs: int, seed: int | None, point: str | None) -> tuple[bool, list[str]]:
    """The crash runs: whether all is right, and what to say of them."""
    first = random.SystemRandom().randrange(10**6) if seed is None else seed
    say(f"{runs} crash runs from seed {first} on; one alone: make chaos RUNS=1 SEED=<its seed>")
    found = run_all([plan(number, point) for number in range(first, first + runs)], BUILT)
    return found.right, found.summary()


def long_half(words: str) -> list[Proof]:
    """Everything that is marked `chaos`."""
    say(
        f"the long tests; one alone: make chaos LONG='words of its name'; what they print at the end is in {BUILT / 'long.log'}"
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
        AT_ONCE,
        "--dist",
        "loadfile",
    ]
    argv += [f"--junit-xml={report}", "tests"]
    began_s = time.monotonic()
    with (BUILT / "long.log").open("w") as log:
        running = subprocess.Popen(
            argv, cwd=REPOSITORY, env={**os.environ, "COLUMNS": "160"}, stdout=subprocess.PIPE, text=True
        )
        assert running.stdout is not None
        for line in running.stdout:
            log.write(line)
            if " PASSED " in line or " FAILED " in line or " ERROR " in line:
                say(f"{(time.monotonic() - began_s) / 60:4.0f} min {line.strip()}")
        running.wait()
    return read_report(report.read_text()) if report.exists() else []


def read_report(text: str) -> list[Proof]:
    """Of what pytest wrote as JUnit's XML: a line a test, the failed ones last."""
    proofs = [_proof(case) for case in ET.fromstring(text).iter("testcase")]  # noqa: S314  our own file
    return sorted(proofs, key=lambda proof: proof.outcome != "passed")


def _proof(case: ET.Element) -> Proof:
    bad = next((child for child in case if child.tag in {"failure", "error", "skipped"}), None)
    outcome = "passed" if bad is None else {"failure": "FAILED", "error": "ERROR", "skipped": "SKIPPED"}[bad.tag]
    error = "" if bad is None else (bad.get("message") or "").partition("\n")[0][:200]
    return Proof(case.get("name") or "?", outcome, float(case.get("time") or 0), error)


if __name__ == "__main__":
    main()
