"""The operator of a grid under fire: does what an alarm asks for, and no more than SLURM's own log bears out."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import OperationalError

from devgrid import REPOSITORY
from devgrid.grid import Grid
from devgrid.machine import deadline
from supervisor_tasks.ledger.alarms import AlarmName
from tests.chaos.slurm_records import purged
from tests.support.watching import rows

LOOKS_EVERY_S = 1.0
HELD = """
    SELECT held.key AS job_id, held.value::int AS slurm_id
    FROM (SELECT report FROM sweeps ORDER BY id DESC LIMIT 1) AS last, jsonb_each_text(last.report->'held') AS held
    WHERE EXISTS (SELECT 1 FROM alarms WHERE name = :alarm)"""


def confirm_lost(grid: Grid) -> list[str]:
    """Confirm the jobs that the sweep holds back and whose files slurmctld says that it has removed."""
    held = rows(grid, HELD, alarm=AlarmName.SWEEP_CONTRADICTION)
    forgotten = purged(grid.folder)
    lost = [row.job_id for row in held if row.slurm_id in forgotten]
    if lost:
        argv = [sys.executable, "-m", "supervisor_tasks.cli", "job", "mark-lost", "--yes", *lost]
        # What has moved on meanwhile ends the command with a status of its own, and is held no more.
        subprocess.run(argv, cwd=REPOSITORY, env=grid.environment, capture_output=True, timeout=deadline(60))
    return lost


@contextmanager
def on_duty(grid: Grid) -> Iterator[list[str]]:
    """An operator is there for as long as this lasts; the list grows by what was confirmed as lost."""
    over, confirmed = threading.Event(), list[str]()

    def watch() -> None:
        while not over.wait(LOOKS_EVERY_S):
            try:
                confirmed.extend(confirm_lost(grid))
            except OperationalError:
                continue  # the database is what is broken now

    thread = threading.Thread(target=watch, name="operator", daemon=True)
    thread.start()
    try:
        yield confirmed
    finally:
        over.set()
        thread.join()
