"""Measures how much a million settled jobs in the ledger slow down new jobs, against an
empty ledger.

The times are the database's own, of the events in the journal and of the stored
callbacks.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from devgrid import REPOSITORY
from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.processes import wait_until
from tests.load.latency import is_settled, schedule
from tests.support import large_ledger
from tests.support.grid_assertions import ledger, rows, wait_for_end
from tests.support.load_figures import Figure, show

JOBS = 100
# jobs before the measured ones: connections and caches of the database are cold after
# it was filled
WARM_UP = 8
COMMANDS = 9
BOUND = 1.10
PARTS = {
    "claim to submit": ("Claimed", "SubmitStarted"),
    "look at the end": ("callback", "SlurmCompleted"),
    "supervisor status": None,
}
FLEET = ("worker", "beat", "callbacks")
_EVENTS = """
    SELECT EXTRACT(EPOCH FROM max(at) FILTER (WHERE name = :until)
        - COALESCE(min(at) FILTER (WHERE name = :since), (
            SELECT min(received_at) FROM callbacks WHERE callbacks.job_id = :job_id AND status = 7)))::float8 AS s
    FROM events WHERE job_id = :job_id"""


def flat(grid: Grid) -> list[Figure]:
    """How many times as long each part of a job's journey takes with a million settled
    jobs as with none.
    """
    customer = grid.new_customer()
    with fleet_stopped(grid):
        # both measurements begin with a new fleet: a fleet that has carried many jobs
        # is quicker
        pass
    empty = medians_s(grid, customer)
    with fleet_stopped(grid):
        fill(grid)
    full = medians_s(grid, customer)
    for part, before_s in empty.items():
        show(
            f"    {part}: {1000 * before_s:.1f} ms with an empty ledger, {1000 * full[part]:.1f} ms with a full one"
        )
    return [
        Figure(
            f"{part} with {large_ledger.SETTLED:,} settled jobs beside none",
            full[part] / empty[part],
            "times",
            BOUND,
        )
        for part in empty
    ]


def medians_s(grid: Grid, customer: Account) -> dict[str, float]:
    """The median of each part."""
    for _ in range(WARM_UP):
        one_job(grid, customer)
    job_ids = [one_job(grid, customer) for _ in range(JOBS)]
    found = dict[str, float]()
    for part, events in PARTS.items():
        if events is None:
            found[part] = statistics.median(status_s(grid) for _ in range(COMMANDS))
            continue
        since, until = events
        times_s = [
            rows(grid, _EVENTS, job_id=job_id, since=since, until=until)[0].s
            for job_id in job_ids
        ]
        found[part] = statistics.median(times_s)
    return found


def one_job(grid: Grid, customer: Account) -> str:
    """Carry a short job to its end. It runs for long enough that the poll at its start
    does not see its end.
    """
    job_id = grid.submit_script(customer, "#!/bin/bash\nsleep 0.3\n")
    schedule(grid, job_id)
    wait_for_end(grid, job_id)
    wait_until(
        lambda: is_settled(grid, job_id), "the ledger to settle the job", 10.0, 0.05
    )
    return job_id


def status_s(grid: Grid) -> float:
    """The seconds that one run of `supervisor status` takes."""
    begun_s = time.perf_counter()
    argv = [sys.executable, "-m", "supervisor_tasks.cli", "status"]
    subprocess.run(
        argv, cwd=REPOSITORY, env=grid.environment, capture_output=True, check=True
    )
    return time.perf_counter() - begun_s


def fill(grid: Grid) -> None:
    """Put settled jobs into the ledger, in blocks before those of the grid's chain."""
    with ledger(grid) as engine:
        large_ledger.fill(
            engine,
            grid.environment["CLUSTER_NAME"],
            active=0,
            behind=2 * large_ledger.SETTLED,
        )


@contextmanager
def fleet_stopped(grid: Grid) -> Iterator[None]:
    """Inside this, the fleet is stopped."""
    for name in FLEET:
        grid.processes.stop(grid.processes.find(name))
    yield
    grid.fleet.start_callbacks()
    grid.fleet.start_worker()
    grid.fleet.start_beat()
