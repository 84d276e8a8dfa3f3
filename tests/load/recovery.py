"""Measures how soon after each fault the jobs move again. A hundred jobs come in while
it lasts; if work goes on meanwhile, fewer are left at its end.
"""

import time
from collections.abc import Sequence

from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.load.cores import Share
from tests.support import faults
from tests.support.grid_assertions import rows
from tests.support.load_figures import Figure, show

JOBS = 100
LASTS_S = 5.0
FIRST_MOVE_S = 5.0
ALL_SETTLED_S = 60.0


def recovery(only: str = "") -> list[Figure]:
    """Measure the faults whose names have the words `only` in them: the times to the
    first job that moves, and to the last one that is settled.
    """
    chosen = [fault for fault in faults.ALL if only in f"recovery after {fault.name}"]
    figures: list[Figure] = []
    if not chosen:
        return figures
    with faults.Target.start(GridOptions(block_time_s=0.25)) as target:
        for fault in chosen:
            show(f"measuring: recovery after {fault.name}")
            share, block, began_s = (
                Share(target.grid),
                target.grid.chain.block_number(),
                time.monotonic(),
            )
            moved_s, settled_s = _recover(target, fault)
            blocks_per_s = (target.grid.chain.block_number() - block) / (
                time.monotonic() - began_s
            )
            show(
                f"    first move {moved_s:.2f} s, {JOBS} jobs settled {settled_s:.2f} s"
            )
            show(
                f"    {blocks_per_s:.1f} blocks a second; the grid had {share.describe()}"
            )
            figures.append(
                Figure(
                    f"{fault.name}: first job moves after", moved_s, "s", FIRST_MOVE_S
                )
            )
            figures.append(
                Figure(
                    f"{fault.name}: {JOBS} jobs settled after",
                    settled_s,
                    "s",
                    ALL_SETTLED_S,
                )
            )
    return figures


def all_assigned(grid: Grid, job_ids: Sequence[str]) -> bool:
    return all(
        job.status is not ChainStatus.PENDING for job in grid.chain.jobs(job_ids)
    )


def _recover(target: faults.Target, fault: faults.Fault) -> tuple[float, float]:
    """The seconds from the end of the fault to the first event of a job, and to the
    settling of the last one. The first is 0 if all were settled before the end of the
    fault.
    """
    grid = target.grid
    customer = grid.new_customer()
    with fault.on(target):
        began_s = time.monotonic()
        job_ids = grid.submit_scripts(customer, "#!/bin/bash\nsleep 0.2\n", JOBS)
        # The time that the grid's meta-scheduler takes on a busy machine is no part of
        # the recovery.
        wait_until(
            lambda: all_assigned(grid, job_ids),
            "the jobs to be given to a provider",
            300.0,
            0.1,
        )
        wait_until(
            lambda: time.monotonic() - began_s > LASTS_S, "the fault's time", 60.0
        )
    ended_s = time.time()
    query = "SELECT min(EXTRACT(EPOCH FROM at))::float8 AS s FROM events WHERE job_id = ANY(:ids) AND at > to_timestamp(:s)"
    settled = (
        "SELECT count(*) AS n FROM jobs WHERE job_id = ANY(:ids) AND state = 'SETTLED'"
    )
    wait_until(
        lambda: rows(grid, settled, ids=job_ids)[0].n == JOBS,
        f"{JOBS} jobs to settle",
        300.0,
        0.1,
    )
    settled_s = time.time()
    first_s = rows(grid, query, ids=job_ids, s=ended_s)[0].s
    return 0.0 if first_s is None else max(first_s - ended_s, 0.0), settled_s - ended_s
