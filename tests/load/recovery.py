"""How soon after a fault everything moves again: a hundred jobs come in while it lasts. All faults that there are; where work
goes on meanwhile, fewer jobs are left at its end.
"""

import time
from collections.abc import Sequence

from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.chaos import faults
from tests.load.cores import Share
from tests.load.figures import Figure, tell
from tests.support.watching import rows

JOBS = 100
LASTS_S = 5.0
FIRST_MOVE_S = 5.0
ALL_SETTLED_S = 60.0


def recovery(only: str = "") -> list[Figure]:
    """Of each fault that has the words in its name: the first job that moves after it, and the last one that settles."""
    chosen = [fault for fault in faults.ALL if only in f"recovery after {fault.name}"]
    found: list[Figure] = []
    if not chosen:
        return found
    with faults.Target.start(GridOptions(block_time_s=0.25)) as target:
        for fault in chosen:
            tell(f"measuring: recovery after {fault.name}")
            share, block, began_s = Share(target.grid), target.grid.chain.block_number(), time.monotonic()
            moved_s, settled_s = _recover(target, fault)
            a_second = (target.grid.chain.block_number() - block) / (time.monotonic() - began_s)
            tell(f"    first move {moved_s:.2f} s, {JOBS} jobs settled {settled_s:.2f} s")
            tell(f"    {a_second:.1f} blocks a second; the grid had {share.told()}")
            found.append(Figure(f"{fault.name}: first job moves after", moved_s, "s", FIRST_MOVE_S))
            found.append(Figure(f"{fault.name}: {JOBS} jobs settled after", settled_s, "s", ALL_SETTLED_S))
    return found


def all_assigned(grid: Grid, job_ids: Sequence[str]) -> bool:
    return all(job.status is not ChainStatus.PENDING for job in grid.chain.jobs(job_ids))


def _recover(target: faults.Target, fault: faults.Fault) -> tuple[float, float]:
    """Seconds from the end of the fault to the first event of a job, and to the last job settled; 0 to the first where
    all had settled before.
    """
    grid = target.grid
    customer = grid.new_customer()
    with fault.on(target):
        began_s = time.monotonic()
        job_ids = grid.submit_scripts(customer, "#!/bin/bash\nsleep 0.2\n", JOBS)
        # What the grid's meta-scheduler takes on a busy machine is no part of the recovery.
        wait_until(lambda: all_assigned(grid, job_ids), "the jobs to be given to a provider", 300.0, 0.1)
        wait_until(lambda: time.monotonic() - began_s > LASTS_S, "the fault's time", 60.0)
    ended_s = time.time()
    query = (
        "SELECT min(EXTRACT(EPOCH FROM at))::float8 AS s FROM events WHERE job_id = ANY(:ids) AND at > to_timestamp(:s)"
    )
    settled = "SELECT count(*) AS n FROM jobs WHERE job_id = ANY(:ids) AND state = 'SETTLED'"
    wait_until(lambda: rows(grid, settled, ids=job_ids)[0].n == JOBS, f"{JOBS} jobs to settle", 300.0, 0.1)
    settled_s = time.time()
    first_s = rows(grid, query, ids=job_ids, s=ended_s)[0].s
    return 0.0 if first_s is None else max(first_s - ended_s, 0.0), settled_s - ended_s
