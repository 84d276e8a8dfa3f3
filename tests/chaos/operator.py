"""The operator of a grid in a chaos test: confirms a job as lost after an alarm, if
slurmctld's own log shows that it is.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import OperationalError

from devgrid import REPOSITORY
from devgrid.grid import Grid
from devgrid.machine import deadline
from supervisor_tasks.alarms.alarm_names import AlarmName
from tests.support.grid_assertions import rows
from tests.support.slurm_records import purged

LOOKS_EVERY_S = 1.0
UNDECIDED = """
    SELECT undecided.key AS job_id, undecided.value::int AS slurm_id
    FROM (SELECT report FROM reconciliations ORDER BY id DESC LIMIT 1) AS last,
        jsonb_each_text(last.report->'needs_operator') AS undecided
    WHERE EXISTS (SELECT 1 FROM alarms WHERE name = :alarm)"""


def mark_lost(grid: Grid) -> list[str]:
    """Confirm as lost the jobs that the sweep holds and whose files slurmctld has
    removed, as its log shows.
    """
    undecided = rows(grid, UNDECIDED, alarm=AlarmName.SWEEP_CONTRADICTION)
    forgotten = purged(grid.folder)
    lost = [row.job_id for row in undecided if row.slurm_id in forgotten]
    if lost:
        argv = [
            sys.executable,
            "-m",
            "supervisor_tasks.cli",
            "job",
            "mark-lost",
            "--yes",
            *lost,
        ]
        # A job that has moved on since the query no longer needs a decision: the command then
        # fails, which does not matter.
        subprocess.run(
            argv,
            cwd=REPOSITORY,
            env=grid.environment,
            capture_output=True,
            timeout=deadline(60),
        )
    return lost


@contextmanager
def on_duty(grid: Grid) -> Iterator[list[str]]:
    """Inside this, an operator watches the grid. Yields the list of the jobs that he
    has confirmed as lost.
    """
    over, confirmed = threading.Event(), list[str]()

    def watch() -> None:
        while not over.wait(LOOKS_EVERY_S):
            try:
                confirmed.extend(mark_lost(grid))
            except OperationalError:
                continue  # the fault of this moment is the database

    thread = threading.Thread(target=watch, name="operator", daemon=True)
    thread.start()
    try:
        yield confirmed
    finally:
        over.set()
        thread.join()
