"""`python -m tests.chaos.soak`: mixed jobs, random faults and forged callbacks for a
chosen time; then the audit.

The seed determines the jobs, the faults and the callbacks; the timing depends on the
machine. One fault at a time begins, lasts and ends; then the soak waits for the jobs
that were there by then. Meanwhile jobs come in, customers cancel and top up, and
strangers send forged callbacks.
"""

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from sqlalchemy.exc import OperationalError

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.hand_in import CREDIT
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from tests.chaos import operator
from tests.support import chaos_jobs, faults
from tests.support.audit import CheckResult, audit
from tests.support.audit_evidence import Evidence, gather
from tests.support.forged_callbacks import forged_callbacks, send
from tests.support.grid_assertions import rows

RECORD = Path(__file__).parents[2] / "docs" / "reliability.json"
BLOCK_TIME_S = 0.25
LASTS_S = (1.0, 10.0)
PLENTY_WEI = 10**9 * CREDIT  # an hour's jobs lock more than a customer of devgrid has
REST_S = (0.0, 5.0)
MEMORY_EVERY_S = 15.0
FORGED_AT_A_TIME = 10
PATIENCE_S = 600.0  # for the jobs of a fault; a longer recovery ends the soak
# The weight of each kind of job. The long ones run for minutes, so that they cost
# something.
MIXTURE = {
    "finishing": 10,
    "failing": 4,
    "cancelled_sometime": 2,
    "topped_up": 1,
    "rejected": 1,
    "without_script": 1,
    "long": 2,
}
LONG_S = (60, 185)
# Sweeps come often, so that what only a sweep finds is found within the soak.
SETTINGS = {"SWEEP_EVERY_S": "20", "SWEEP_GRACE_S": "15"}
LOST, DOUBLED, MINUTES, ENDS = "lost", "doubled", "wrong minutes", "wrong ends"
MEANING = {
    "ended": LOST,
    "claims": LOST,
    "hook_events_stored": LOST,
    "callbacks_read": LOST,
    "nothing_left": LOST,
    "ran_once": DOUBLED,
    "no_twins": DOUBLED,
    "one_write_an_idempotency_key": DOUBLED,
    "minutes": MINUTES,
    "paid": MINUTES,
    "ledger_figures": MINUTES,
    "expected": ENDS,
    "not_given_up": ENDS,
    "forgotten_by_slurm": ENDS,
    "right_status": ENDS,
}


@dataclass(slots=True)
class Log:
    """What happened during a soak."""

    submitted: Counter[str] = field(default_factory=Counter)
    # ids of jobs that end within seconds
    quick: list[str] = field(default_factory=list)
    job_ids: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    forged_answers: Counter[str] = field(default_factory=Counter)
    recoveries: list[tuple[float, str]] = field(default_factory=list)
    # by pid of a worker
    memory_mb: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    too_late: list[str] = field(default_factory=list)


class Soak:
    """A grid with load, faults and forged callbacks."""

    def __init__(
        self, target: faults.Target, seed: int, jobs_per_s: float, log: Log
    ) -> None:
        self._target = target
        self._grid: Grid = target.grid
        self._customer: Account = self._grid.new_customer()
        self._grid.chain.admin.mint_credits(self._customer.address, PLENTY_WEI)
        self._chance = random.Random(seed)
        self._seed = seed
        self._jobs_per_s = jobs_per_s
        self._log = log
        self._over = threading.Event()

    def run(self, seconds: float) -> None:
        """Run for so many seconds, and wait until nothing is left to do. Raises the
        errors of the threads.
        """
        ends_s = time.monotonic() + seconds
        with ThreadPoolExecutor(24) as pool:
            others = [
                pool.submit(self._load, pool),
                pool.submit(self._send_forged),
                pool.submit(self._measure_memory),
            ]
            try:
                while time.monotonic() < ends_s:
                    self._one_fault(random.Random(self._chance.random()), ends_s)
            finally:
                self._over.set()
            for other in others:
                other.result()
        chaos_jobs.wait_for_rest(self._grid, PATIENCE_S)
        self._measure_once()

    def _one_fault(self, chance: random.Random, ends_s: float) -> None:
        fault = chance.choice(faults.ALL)
        lasts_s = chance.uniform(*LASTS_S)
        show(
            f"{fault.name} for {lasts_s:.1f} s; {round(ends_s - time.monotonic())} s to go"
        )
        with fault.on(self._target):
            self._over.wait(lasts_s)
        faults.have_ended_jobs_noticed(self._grid)
        self._log.faults[fault.name] += 1
        ended_s = time.monotonic()
        self._wait_for(list(self._log.quick))
        took_s = time.monotonic() - ended_s
        self._log.recoveries.append((took_s, fault.name))
        show(f"    settled {took_s:.1f} s after it")
        self._over.wait(chance.uniform(*REST_S))

    def _wait_for(self, job_ids: list[str]) -> None:
        """Wait until the ledger has settled these jobs."""
        query = "SELECT count(*) AS n FROM jobs WHERE job_id = ANY(:ids) AND state = 'SETTLED'"
        wait_until(
            lambda: rows(self._grid, query, ids=job_ids)[0].n == len(job_ids),
            "the jobs to be settled",
            PATIENCE_S,
            0.2,
        )

    # --- what goes on meanwhile -------------------------------------------------------

    def _load(self, pool: ThreadPoolExecutor) -> None:
        chance = random.Random(self._seed + 1)
        submissions: list[Future[None]] = []
        while not self._over.wait(chance.expovariate(self._jobs_per_s)):
            kind = chance.choices(list(MIXTURE), list(MIXTURE.values()))[0]
            submissions.append(
                pool.submit(self._submit, kind, random.Random(chance.random()))
            )
        for submission in submissions:
            submission.result()

    def _submit(self, kind: str, chance: random.Random) -> None:
        submit: chaos_jobs.Submit = chaos_jobs.KINDS.get(kind, _long)
        try:
            job_id = submit(self._grid, self._customer, chance)
        except (AssertionError, TimeoutError) as error:
            self._log.too_late.append(f"{kind}: {str(error).splitlines()[0]}")
            return
        self._log.submitted[kind] += 1
        self._log.job_ids.append(job_id)
        if kind in ("finishing", "failing"):
            self._log.quick.append(job_id)

    def _send_forged(self) -> None:
        batch = 0
        while not self._over.wait(1.0):
            batch += 1
            job_ids = self._log.job_ids[-50:]
            query = "SELECT slurm_id FROM jobs WHERE job_id = ANY(:ids) AND slurm_id IS NOT NULL"
            try:
                slurm_ids = [
                    row.slurm_id for row in rows(self._grid, query, ids=job_ids)
                ]
            except OperationalError:
                continue  # the fault of this moment is the database
            callbacks = islice(
                forged_callbacks(self._seed + batch, job_ids, slurm_ids),
                FORGED_AT_A_TIME,
            )
            self._log.forged_answers.update(send(self._grid, list(callbacks)))

    def _measure_memory(self) -> None:
        while not self._over.wait(MEMORY_EVERY_S):
            self._measure_once()

    def _measure_once(self) -> None:
        for running in self._grid.processes.running():
            process = running.process()
            if running.name == "worker" and process is not None:
                self._log.memory_mb[process.pid].append(
                    process.memory_info().rss / 2**20
                )


def _long(grid: Grid, customer: Account, chance: random.Random) -> str:
    return chaos_jobs.finishing(grid, customer, seconds=chance.randint(*LONG_S))


def main() -> None:
    """Run, audit, print and, with --record, write docs/reliability.json; status 1 if
    there are violations.
    """
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--load", type=float, default=0.6, help="jobs a second")
    parser.add_argument(
        "--record", action="store_true", help=f"write the figures to {RECORD.name}"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the logs if there are violations"
    )
    options = parser.parse_args()
    seed = (
        random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    )
    log = Log()
    with faults.Target.start(
        GridOptions(block_time_s=BLOCK_TIME_S, overrides=SETTINGS)
    ) as target:
        show(f"seed {seed}, grid in {target.grid.folder}")
        at_rest = False
        try:
            with operator.on_duty(target.grid):
                Soak(target, seed, options.load, log).run(options.minutes * 60)
            at_rest = True
        finally:
            evidence = gather(target.grid.folder)
            result = summary(seed, options, log, evidence, audit(evidence))
            print(json.dumps(result, indent=1), flush=True)
            # else the grid was still at work during the audit
            if options.record and at_rest:
                RECORD.write_text(json.dumps(result, indent=1) + "\n")
            if options.keep and result["violations"]:
                kept = Path(tempfile.mkdtemp(prefix="soak-"))
                shutil.copytree(target.grid.folder / "log", kept / "log")
                for name in ("slurmctld.log", "completed", "reported_ends"):
                    shutil.copy(target.grid.folder / "slurm" / name, kept / name)
                show(f"the logs are in {kept}")
    sys.exit(1 if result["violations"] else 0)


def summary(
    seed: int,
    options: argparse.Namespace,
    log: Log,
    evidence: Evidence,
    findings: Sequence[CheckResult],
) -> dict[str, object]:
    """The figures of a soak, as docs/reliability.json has them."""
    wrong = Counter({LOST: 0, DOUBLED: 0, MINUTES: 0, ENDS: 0})
    for found in findings:
        wrong[MEANING.get(found.check.name, "other violations")] += len(
            found.violations
        )
    waits = sorted(log.recoveries)
    worst_s, worst = waits[-1] if waits else (0.0, "")
    return {
        "minutes": options.minutes,
        "seed": seed,
        "jobs_a_second": options.load,
        "jobs": len(evidence.ours),
        "jobs_by_kind": dict(sorted(log.submitted.items())),
        "minutes_billed": sum(
            job.final_cost_wei // job.price_wei_per_min
            for job in evidence.ours
            if job.price_wei_per_min
        ),
        "faults": sum(log.faults.values()),
        "faults_by_kind": dict(sorted(log.faults.items())),
        "forged_callback_answers": dict(sorted(log.forged_answers.items())),
        **{name.replace(" ", "_"): number for name, number in wrong.items()},
        "forgotten_by_slurm": len(evidence.forgotten),
        "ended_by_slurm": sum(map(evidence.ended_by_slurm, evidence.expected)),
        "violations": [
            f"{found.check.name}: {line}"
            for found in findings
            for line in found.violations
        ]
        + log.too_late,
        "recovery_s": {
            "p50": round(statistics.median(wait for wait, _ in waits), 1)
            if waits
            else 0.0,
            "max": round(worst_s, 1),
            "after": worst,
        },
        "worker_memory_mb": _memory(log.memory_mb.values()),
    }


def _memory(by_worker: Collection[Sequence[float]]) -> dict[str, object]:
    """Start and end are those of the worker that lived longest: faults end workers, and
    a new one is small.
    """
    longest = max(by_worker, key=len)
    return {
        "start": round(longest[0]),
        "end": round(longest[-1]),
        "lived_min": round((len(longest) - 1) * MEMORY_EVERY_S / 60, 1),
        "most_of_any": round(max(map(max, by_worker))),
        "workers": len(by_worker),
    }


def show(text: str) -> None:
    """Print a line of progress, with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
