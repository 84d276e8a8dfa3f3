"""Keeps the logs and the ledger of a grid whose test failed: the grid itself is stopped
before an engineer looks.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from devgrid.grid import Grid
from tests.support.audit_evidence import EXPECTED
from tests.support.grid_assertions import rows

TABLES = (
    "jobs",
    "events",
    "effects",
    "transactions",
    "callbacks",
    "alarms",
    "reconciliations",
)


def keep(grid: Grid, folder: Path) -> None:
    """Copy the logs of all processes, what SLURM wrote and the ledger's tables into the
    folder, which is emptied first.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(grid.folder / "log", folder / "log")
    slurm = folder / "slurm"
    slurm.mkdir()
    for name in ("slurm.conf", "completed", "reported_ends", "*.log"):
        for file in (grid.folder / "slurm").glob(name):
            shutil.copy(file, slurm)
    if (grid.folder / EXPECTED).exists():
        shutil.copy(grid.folder / EXPECTED, folder)
    for table in TABLES:
        with suppress(SQLAlchemyError):  # the database may be what is broken
            found = rows(grid, f"SELECT * FROM {table} ORDER BY 1")  # noqa: S608
            (folder / f"{table}.txt").write_text(
                "".join(f"{dict(row._mapping)}\n" for row in found)
            )
