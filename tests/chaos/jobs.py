"""Jobs for grids under fire: each leaves a mark when it starts, and whoever asks for it writes down how it must end."""

import json
from pathlib import Path
from typing import Any

from sqlalchemy import text

from devgrid.chain import Account
from devgrid.grid import Grid
from devgrid.process import wait_until
from tests.chaos.evidence import EXPECTED, MARKS
from tests.watching import ledger


def marks(grid: Grid) -> Path:
    """Where jobs leave their marks: any Linux user may write here."""
    folder = grid.folder / MARKS
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)
    return folder


def marking(grid: Grid, body: str) -> str:
    """A script that says that it was started, and then does `body`."""
    mark = f'"{marks(grid)}/$SLURM_JOB_NAME-$SLURM_JOB_ID"'
    return f'#!/bin/bash\necho "started $SLURM_JOB_NAME $SLURM_JOB_ID" >>{mark}\n{body}\n'


def expect(grid: Grid, job_id: str, *ends: str, **about: Any) -> None:
    """The job ends with one of these statuses; `runs` and `exit_status` where they are certain."""
    with (grid.folder / EXPECTED).open("a") as file:
        file.write(json.dumps({"job_id": job_id, "ends": ends, **about}) + "\n")


def finishing(grid: Grid, customer: Account, seconds: float = 0.2) -> str:
    """A job that does its work."""
    job_id = grid.submit_script(customer, marking(grid, f"sleep {seconds}"))
    expect(grid, job_id, "FINISHED", runs=1, exit_status=0)
    return job_id


def failing(grid: Grid, customer: Account) -> str:
    """A job that ends with exit code 3."""
    job_id = grid.submit_script(customer, marking(grid, "exit 3"))
    expect(grid, job_id, "FAILED", runs=1, exit_status=3 * 256)
    return job_id


AT_REST = """
    SELECT (SELECT count(*) FROM effects WHERE done_at IS NULL AND parked_at IS NULL)
        + (SELECT count(*) FROM transactions WHERE state NOT IN ('MINED', 'REVERTED'))
        + (SELECT count(*) FROM callbacks WHERE read_at IS NULL) AS left_to_do"""


def wait_for_rest(grid: Grid, timeout_s: float = 120.0) -> None:
    """Until nothing is left to do: ledger, spool, and every expected job's contract."""
    with ledger(grid) as engine:

        def at_rest() -> bool:
            with engine.connect() as connection:
                left = connection.scalar(text(AT_REST))
            spooled = [file for file in (grid.folder / "spool").iterdir() if file.name.endswith(("-end", "-start"))]
            return not left and not spooled

        wait_until(at_rest, "nothing to be left to do", timeout_s, every_s=0.1)
