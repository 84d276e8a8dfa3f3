"""Measures how soon workers act on what the operator decides."""

import subprocess
import sys
import time

from devgrid import REPOSITORY
from devgrid.grid import Grid
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.load.latency import p95, schedule
from tests.support.grid_assertions import rows, wait_for
from tests.support.load_figures import Figure

JOBS = 10  # of each command; one takes 9 s with its end on chain
ACTS_WITHIN_S = 1.0
SETTLE = ("settle", "--status", "FINISHED", "--minutes", "1")
CANCEL = ("cancel",)
# from the operator's event in the ledger until the report is with a node, and until
# SLURM has been told to cancel
_REPORTED = """
    SELECT EXTRACT(EPOCH FROM min(sent_at) - max(at))::float8 AS waited_s
    FROM transactions JOIN events USING (cluster, job_id)
    WHERE job_id = :job_id AND name = 'OperatorSettledJob' AND purpose = 'report FINISHED'"""
_CANCELLED = """
    SELECT EXTRACT(EPOCH FROM min(done_at) - max(at))::float8 AS waited_s
    FROM effects JOIN events USING (cluster, job_id)
    WHERE job_id = :job_id AND name = 'OperatorCancelled' AND kind = 'cancel'"""


def operator_commands(grid: Grid) -> list[Figure]:
    """The time from an operator's decision in the ledger to what workers do first: the
    report of a settled job is sent, and SLURM cancels a cancelled one.
    """
    return [
        _figure(grid, "job settle to its report sent", SETTLE, _REPORTED),
        _figure(grid, "job cancel to scancel done", CANCEL, _CANCELLED),
    ]


def _figure(grid: Grid, name: str, words: tuple[str, ...], query: str) -> Figure:
    waits_s = [_waited_s(grid, words, query, number) for number in range(JOBS)]
    return Figure(f"{name}, p95 of {JOBS}", p95(waits_s), "s", ACTS_WITHIN_S)


def _waited_s(grid: Grid, words: tuple[str, ...], query: str, number: int) -> float:
    job_id = grid.submit_script(grid.new_customer(), "#!/bin/bash\nsleep 600\n")
    schedule(grid, job_id)
    wait_for(grid, job_id, {ChainStatus.RUNNING})
    # blocks come each second: without this, all commands would come at similar times
    # between two questions of beat
    time.sleep(number / JOBS)
    argv = [sys.executable, "-m", "supervisor_tasks.cli", "job", words[0], job_id]
    subprocess.run(
        [*argv, *words[1:], "--reason", "measured", "--yes"],
        cwd=REPOSITORY,
        env=grid.environment,
        capture_output=True,
        check=True,
    )
    wait_until(
        lambda: rows(grid, query, job_id=job_id)[0].waited_s is not None,
        "a worker to act on the operator's decision",
        60.0,
        0.05,
    )
    waited_s: float = rows(grid, query, job_id=job_id)[0].waited_s
    wait_for(grid, job_id, {status for status in ChainStatus if status.is_final})
    return waited_s
