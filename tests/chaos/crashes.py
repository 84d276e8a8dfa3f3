"""`make chaos`, its first half: processes die where the world changes, and every job ends right all the same.

One run: a place in the program is armed (supervisor_tasks/crash_points.py), jobs that pass it are asked for, the process that
passes it ends as by SIGKILL, a keeper starts it again, the jobs are awaited, and the audit looks at everything. A run follows
from its seed; runs share a grid, a batch of them each (series.py).
"""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.crash_points import CrashPoint
from supervisor_tasks.ledger.outbox import PARKED_AFTER
from tests.chaos import jobs
from tests.chaos.audit import audit, violations
from tests.chaos.directory import wrong_accounts
from tests.chaos.evidence import gather
from tests.chaos.keeper import ProcessSupervisor
from tests.support.watching import rows, wait_for

PLACES = tuple(f"{side}-{point}" for point in CrashPoint for side in ("before", "after"))
KEPT = ("worker", "beat", "callbacks", "reporter")
LOOKS = 3
STRAGGLERS_S = 10.0
PATIENCE_S = 240.0
BLOCK_TIME_S = 0.2
OVERRIDES = {"CHAIN_POLL_S": "0.3", "CHAIN_CONFIRMATIONS": str(jobs.CONFIRMATIONS)}
OFTEN = {
    CrashPoint.COMMIT: 12,
    CrashPoint.LEASE: 6,
    CrashPoint.SIGN: 3,
    CrashPoint.BROADCAST: 3,
    CrashPoint.RECEIPT_READ: 3,
}
# The hook is a program of SLURM's side that knows no orders: strace ends it at the system call before or after which the
# event is in the spool.
HOOK = r"""
run={hook}
for fatal in "before renameat:signal=KILL" "after fsync:signal=KILL:when=2"; do
    if [ "$(cat {order} 2>/dev/null)" = "${{fatal%% *}}-event-spooled 1" ] && rm {order}; then
        run="strace -o /dev/null -e inject=${{fatal#* }} {hook}"
    fi
done
$run
"""
# An effect that is hit once more is left to the operator. On a slow machine the same one may be under way for several
# deaths; the last of them is counted only when its lease is freed.
HIT_OFTEN = f"""
    SELECT 1 FROM effects WHERE done_at IS NULL AND parked_at IS NULL
        AND unexpected_failures + (unexpected_failures > 0 AND lease IS NOT NULL)::int >= {PARKED_AFTER - 1}
"""  # noqa: S608  our own
# Only these jobs pass such a point for certain.
NEEDS = {
    CrashPoint.SCANCEL: "cancelled",
    CrashPoint.TIME_LIMIT: "topped_up",
    CrashPoint.POSTPONE: "finishing",
    CrashPoint.LDAP_ADD: "newcomers",
    CrashPoint.LDAP_MEMBER: "newcomers",
    CrashPoint.REORGANISED: "reorganised",
}
KINDS = ("finishing", "finishing", "failing", "cancelled_sometime", "topped_up", "rejected", "without_script")


@dataclass(frozen=True, slots=True)
class Run:
    """What a seed stands for: where to die, at the how-manieth time, and what jobs there are."""

    seed: int
    place: str
    count: int
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run went."""

    run: Run
    reached: bool
    took_s: float
    dead: tuple[str, ...]

    def __str__(self) -> str:
        fate = "killed " + " ".join(self.dead) if self.reached else "not reached"
        run = self.run
        return f"seed {run.seed} {run.place} x{run.count} {'+'.join(run.kinds)}: {fate}, {self.took_s:.1f} s"


def plan(seed: int, place: str | None = None) -> Run:
    """The run of a seed: as many seeds in a row as there are places go through all of them."""
    chance = random.Random(seed)
    where = place or PLACES[seed % len(PLACES)]
    point = CrashPoint(where.partition("-")[2])
    first = NEEDS.get(point) or chance.choice(KINDS[:2] if point is CrashPoint.SBATCH else KINDS[:4])
    more = [chance.choice(KINDS) for _ in range(chance.randrange(2))]
    return Run(seed, where, chance.randint(1, OFTEN.get(point, 1)), (first, *more))


class CrashTestGrid:
    """A grid whose fleet can be killed at any place."""

    def __init__(self, grid: Grid, order: Path) -> None:
        self.grid = grid
        self._order = order
        self._customer: Account = grid.new_customer()
        self._asked: list[str] = []
        self._long: list[str] = []

    @classmethod
    @contextmanager
    def made(cls, *, workers: int = 1) -> Iterator["CrashTestGrid"]:
        """A grid with its fleet and a keeper; everything is gone at the end. Of two workers, one goes on at once when the
        other dies; a lone one leaves everything where it is until it is back.
        """
        grid = Grid.start(GridOptions(block_time_s=BLOCK_TIME_S, ldap=True, overrides=OVERRIDES))
        try:
            order = grid.folder / "crash-at"
            _let_the_hook_die(grid.folder / "slurm", order)
            grid.environment["CRASH_AT"] = str(order)
            grid.processes.stop(grid.processes.find("reporter"))
            grid.start_reporter()
            grid.fleet.start(flower=False)
            more = [f"worker-{number}" for number in range(2, workers + 1)]
            for name in more:
                grid.fleet.start_worker(name)
            listens = "SELECT 1 FROM cursors WHERE stream = 'customers'"  # who asked before gets no account
            wait_until(lambda: bool(rows(grid, listens)), "the fleet to listen to new customers", 90.0, 0.1)
            with ProcessSupervisor(grid.processes, [*KEPT, *more]) as keeper:
                field = cls(grid, order)
                field.keeper = keeper
                yield field
        finally:
            grid.stop()

    keeper: ProcessSupervisor

    def ask_for_long_jobs(self) -> None:
        """Jobs that outlast the minute, so that there is something to bill; they run beside all others."""
        self._long = [
            jobs.finishing(self.grid, self._customer, seconds=62),
            jobs.timing_out(self.grid, self._customer),
        ]
        for job_id in self._long:
            wait_for(self.grid, job_id, jobs.RUNNING, PATIENCE_S)

    def kill(self, run: Run) -> Outcome:
        """One death. It comes when a job passes the place, or never when all have ended without."""
        wait_until(
            lambda: not rows(self.grid, HIT_OFTEN), "what deaths have hit again and again to be done", PATIENCE_S
        )
        began_s, deaths = time.monotonic(), len(self.keeper.deaths)
        self._arm(run)
        chance = random.Random(run.seed)
        job_ids = [jobs.KINDS[kind](self.grid, self._customer, chance) for kind in run.kinds]
        self._asked += job_ids

        def decided() -> bool:
            return not self._order.exists() or jobs.ended(self.grid, job_ids)

        wait_until(decided, f"the death at {run.place}, or the end of its jobs", PATIENCE_S, 0.05)
        with suppress(TimeoutError):  # what plugins say may come after SLURM has told the end
            wait_until(lambda: not self._order.exists(), "the death", STRAGGLERS_S)
        reached = not self._order.exists()
        self._order.unlink(missing_ok=True)
        if reached and not run.place.endswith(CrashPoint.EVENT_SPOOLED):  # no keeper looks after the hook
            wait_until(lambda: len(self.keeper.deaths) > deaths, f"the death at {run.place} to be seen", PATIENCE_S)
        dead = tuple(death.name for death in self.keeper.deaths[deaths:])
        return Outcome(run, reached, time.monotonic() - began_s, dead)

    def check(self) -> list[str]:
        """Run to the end, and what is wrong then."""
        jobs.wait_for_end(self.grid, self._asked, timeout_s=240.0)
        self._asked = []
        return self._wrong()

    def finish(self) -> list[str]:
        """Wait for the long jobs as well, and what is wrong in the end."""
        jobs.wait_for_end(self.grid, self._long, timeout_s=200.0)
        self._long = []
        return self._wrong()

    def _arm(self, run: Run) -> None:
        draft = self._order.with_suffix(".new")
        draft.write_text(f"{run.place} {run.count}")
        draft.replace(self._order)

    def _wrong(self) -> list[str]:
        """The audit's violations, but for the jobs that are still to go on. What goes away by itself was their work."""
        claims = rows(self.grid, "SELECT claim_key FROM jobs WHERE job_id = ANY(:ids)", ids=self._long)
        under_way = [*self._long, *(row.claim_key for row in claims)]
        found: list[str] = []
        for _ in range(LOOKS):
            jobs.wait_for_rest(self.grid, effects=not self._long)
            seen = violations(audit(gather(self.grid.folder))) + self._accounts()
            found = [line for line in seen if not any(name in line for name in under_way)]
            if not found:
                break
        return found

    def _accounts(self) -> list[str]:
        """What is wrong with the accounts of all who have asked for a job."""
        wait_until(
            lambda: not rows(self.grid, "SELECT 1 FROM effects WHERE kind = 'account' AND done_at IS NULL"),
            "the accounts",
            60.0,
        )
        asked = [name.lower() for (name, *_) in rows(self.grid, "SELECT DISTINCT customer FROM jobs")]
        return wrong_accounts(self.grid, asked)


def _let_the_hook_die(folder: Path, order: Path) -> None:
    script = folder / "completed.sh"
    hook = folder / "plugins" / "supervisor-ended"
    lines = script.read_text().replace(f"\n{hook}\n", HOOK.format(order=order, hook=hook))
    script.write_text(lines)
