"""The crash runs of `make chaos`: a process dies where it changes the world, and every
job must still end right.

A run arms a place in the program (supervisor_tasks/crash_points.py) and submits jobs
that pass it. The process that passes it dies as by SIGKILL, and the keeper starts it
again. The run waits for the jobs to end, and audits the grid. The seed determines the
run. A batch of runs shares a grid (crash_series.py).
"""

import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.options import GridOptions, Transport
from devgrid.processes import wait_until
from supervisor_tasks.crash_points import CrashPoint
from supervisor_tasks.ledger.outbox import PARKED_AFTER
from tests.chaos.directory import wrong_accounts
from tests.chaos.keeper import ProcessSupervisor
from tests.support import chaos_jobs
from tests.support.audit import audit, violations
from tests.support.audit_evidence import gather
from tests.support.chaos_report import PLACES, Outcome, Run
from tests.support.grid_assertions import rows, wait_for

RESTARTED = ("worker", "beat", "callbacks", "reporter")
AUDITS = 3
STRAGGLERS_S = 10.0
PATIENCE_S = 240.0
BLOCK_TIME_S = 0.2
OVERRIDES = {
    "CHAIN_POLL_S": "0.3",
    "CHAIN_CONFIRMATIONS": str(chaos_jobs.CONFIRMATIONS),
}
# of passes of a place: the process dies at one of them. Other points are passed once
MAX_COUNT = {
    CrashPoint.COMMIT: 12,
    CrashPoint.LEASE: 6,
    CrashPoint.SIGN: 3,
    CrashPoint.BROADCAST: 3,
    CrashPoint.RECEIPT_READ: 3,
}
# The hook belongs to SLURM and does not know the crash points: strace kills it at the
# system call before or after which the event is in the spool.
HOOK = r"""
run={hook}
for fatal in "before renameat:signal=KILL" "after fsync:signal=KILL:when=2"; do
    if [ "$(cat {order} 2>/dev/null)" = "${{fatal%% *}}-event-spooled 1" ] && rm {order}; then
        run="strace -o /dev/null -e inject=${{fatal#* }} {hook}"
    fi
done
$run
"""
# Effects that are parked if one more death hits them. On a slow machine, several deaths
# may hit the same effect; the last one is counted only when its lease is freed.
ALMOST_PARKED = f"""
    SELECT 1 FROM effects WHERE done_at IS NULL AND parked_at IS NULL
        AND unexpected_failures + (unexpected_failures > 0 AND lease IS NOT NULL)::int >= {PARKED_AFTER - 1}
"""  # noqa: S608  our own
FETCHED = "SELECT 1 FROM jobs WHERE job_id = ANY(:ids) AND script IS NOT NULL"
# The kind of job that is certain to pass the point.
KIND_OF_POINT = {
    CrashPoint.SCANCEL: "cancelled",
    CrashPoint.TIME_LIMIT: "topped_up",
    CrashPoint.POSTPONE: "finishing",
    CrashPoint.LDAP_ADD: "newcomers",
    CrashPoint.LDAP_MEMBER: "newcomers",
    CrashPoint.REORGANISED: "reorganised",
}
KINDS = (
    "finishing",
    "finishing",
    "failing",
    "cancelled_sometime",
    "topped_up",
    "rejected",
    "without_script",
)


def plan(seed: int, place: str | None = None) -> Run:
    """The run of a seed. Consecutive seeds, as many as there are places, try each place
    once.
    """
    chance = random.Random(seed)
    place = place or PLACES[seed % len(PLACES)]
    point = CrashPoint(place.partition("-")[2])
    first = KIND_OF_POINT.get(point) or chance.choice(
        KINDS[:2] if point is CrashPoint.SBATCH else KINDS[:4]
    )
    more = [chance.choice(KINDS) for _ in range(chance.randrange(2))]
    return Run(seed, place, chance.randint(1, MAX_COUNT.get(point, 1)), (first, *more))


class CrashTestGrid:
    """A grid whose fleet can be killed at any place."""

    def __init__(self, grid: Grid, order: Path) -> None:
        self.grid = grid
        self._order = order
        self._customer: Account = grid.new_customer()
        self._job_ids: list[str] = []  # of the last run
        self._long_job_ids: list[str] = []

    @classmethod
    @contextmanager
    def start(
        cls, *, workers: int = 1, transport: Transport = "ssh"
    ) -> Iterator["CrashTestGrid"]:
        """A grid with its fleet and a keeper; all of it is stopped at the end. With two
        workers, one goes on at once when the other dies. With one, nothing moves until
        the keeper has started it again. `transport` is the way to SLURM.
        """
        grid = Grid.start(
            GridOptions(
                block_time_s=BLOCK_TIME_S,
                ldap=True,
                transport=transport,
                overrides=OVERRIDES,
            )
        )
        try:
            order = grid.folder / "crash-at"
            _let_the_hook_die(grid.folder / "slurm", order)
            grid.environment["CRASH_AT"] = str(order)
            grid.processes.stop(grid.processes.find("reporter"))
            grid.start_reporter()
            grid.fleet.start(flower=False)
            other_workers = [f"worker-{number}" for number in range(2, workers + 1)]
            for name in other_workers:
                grid.fleet.start_worker(name)
            # A customer who submits before the fleet listens gets no account.
            listening = "SELECT 1 FROM cursors WHERE stream = 'customers'"
            wait_until(
                lambda: bool(rows(grid, listening)),
                "the fleet to listen to new customers",
                90.0,
                0.1,
            )
            with ProcessSupervisor(
                grid.processes, [*RESTARTED, *other_workers]
            ) as keeper:
                crash_grid = cls(grid, order)
                crash_grid.keeper = keeper
                yield crash_grid
        finally:
            grid.stop()

    keeper: ProcessSupervisor

    def submit_long_jobs(self) -> None:
        """Submit jobs that run for more than a minute, so that they cost something.
        They run beside all others.
        """
        self._long_job_ids = [
            chaos_jobs.finishing(self.grid, self._customer, seconds=62),
            chaos_jobs.timing_out(self.grid, self._customer),
        ]
        for job_id in self._long_job_ids:
            wait_for(self.grid, job_id, chaos_jobs.RUNNING, PATIENCE_S)

    def kill(self, run: Run) -> Outcome:
        """Carry out a run up to the death: when a process passes the place, or never if
        the jobs end without passing it.
        """

        def submit() -> list[str]:
            self._arm(run)
            chance = random.Random(run.seed)
            job_ids = [
                chaos_jobs.KINDS[kind](self.grid, self._customer, chance)
                for kind in run.kinds
            ]
            self._job_ids += job_ids
            return job_ids

        return self._kill(run, submit)

    def kill_in_batch(self, run: Run, size: int) -> Outcome:
        """Carry out a run with so many jobs that are submitted to SLURM together
        (`submit_together`). A place that claims and fetches pass, too, is armed only
        when all scripts are there.
        """
        of_submissions = run.place.partition("-")[2] in (
            CrashPoint.SBATCH,
            CrashPoint.ID_STORED,
        )

        def submit() -> list[str]:
            if of_submissions:
                self._arm(run)
                return self.submit_together(size, lambda: None)
            return self.submit_together(size, lambda: self._arm(run))

        return self._kill(run, submit)

    def submit_together(
        self, size: int, when_fetched: Callable[[], object]
    ) -> list[str]:
        """Submit so many jobs. sshd stands still until all scripts are there and
        `when_fetched` was called, so that they are submitted to SLURM together.
        """
        sshd = self.grid.processes.find("sshd")
        self.grid.processes.signal_tree(sshd, signal.SIGSTOP)
        try:
            job_ids = chaos_jobs.finishing_together(self.grid, self._customer, size)
            wait_until(
                lambda: len(rows(self.grid, FETCHED, ids=job_ids)) == size,
                f"{size} scripts",
                PATIENCE_S,
                0.05,
            )
            when_fetched()
        finally:
            self.grid.processes.signal_tree(sshd, signal.SIGCONT)
        self._job_ids += job_ids
        return job_ids

    def _kill(self, run: Run, submit: Callable[[], list[str]]) -> Outcome:
        wait_until(
            lambda: not rows(self.grid, ALMOST_PARKED),
            "the effects that many deaths have hit to be done",
            PATIENCE_S,
        )
        began_s, deaths = time.monotonic(), len(self.keeper.deaths)
        job_ids = submit()

        def decided() -> bool:
            return not self._order.exists() or chaos_jobs.ended(self.grid, job_ids)

        wait_until(
            decided,
            f"the death at {run.place}, or the end of its jobs",
            PATIENCE_S,
            0.05,
        )
        with suppress(TimeoutError):  # callbacks may come after the end of the job
            wait_until(lambda: not self._order.exists(), "the death", STRAGGLERS_S)
        reached = not self._order.exists()
        self._order.unlink(missing_ok=True)
        # the keeper does not watch the hook
        if reached and not run.place.endswith(CrashPoint.EVENT_SPOOLED):
            wait_until(
                lambda: len(self.keeper.deaths) > deaths,
                f"the death at {run.place} to be seen",
                PATIENCE_S,
            )
        dead = tuple(death.name for death in self.keeper.deaths[deaths:])
        return Outcome(run, reached, time.monotonic() - began_s, dead)

    def check(self) -> list[str]:
        """Wait for the jobs of the run to end. Returns the violations."""
        chaos_jobs.wait_for_end(self.grid, self._job_ids, timeout_s=240.0)
        self._job_ids = []
        return self._violations()

    def finish(self) -> list[str]:
        """Wait for the long jobs to end, too. Returns the violations."""
        chaos_jobs.wait_for_end(self.grid, self._long_job_ids, timeout_s=200.0)
        self._long_job_ids = []
        return self._violations()

    def _arm(self, run: Run) -> None:
        draft = self._order.with_suffix(".new")
        draft.write_text(f"{run.place} {run.count}")
        draft.replace(self._order)

    def _violations(self) -> list[str]:
        """The audit's violations, without those about the long jobs while they run. A
        violation that the next audit does not find came from their work.
        """
        claims = rows(
            self.grid,
            "SELECT claim_key FROM jobs WHERE job_id = ANY(:ids)",
            ids=self._long_job_ids,
        )
        under_way = [*self._long_job_ids, *(row.claim_key for row in claims)]
        found: list[str] = []
        for _ in range(AUDITS):
            chaos_jobs.wait_for_rest(self.grid, effects=not self._long_job_ids)
            lines = (
                violations(audit(gather(self.grid.folder))) + self._account_violations()
            )
            found = [line for line in lines if not _names_any(line, under_way)]
            if not found:
                break
        return found

    def _account_violations(self) -> list[str]:
        """What is wrong with the accounts of all customers who have submitted a job."""
        wait_until(
            lambda: (
                not rows(
                    self.grid,
                    "SELECT 1 FROM effects WHERE kind = 'account' AND done_at IS NULL",
                )
            ),
            "the accounts",
            60.0,
        )
        customers = [
            name.lower()
            for (name, *_) in rows(self.grid, "SELECT DISTINCT customer FROM jobs")
        ]
        return wrong_accounts(self.grid, customers)


def _let_the_hook_die(folder: Path, order: Path) -> None:
    script = folder / "completed.sh"
    hook = folder / "plugins" / "supervisor-ended"
    lines = script.read_text().replace(
        f"\n{hook}\n", HOOK.format(order=order, hook=hook)
    )
    script.write_text(lines)


def _names_any(line: str, names: Iterable[str]) -> bool:
    return any(name in line for name in names)
