"""A Postgres that begins with a copy of a migrated, empty ledger.

initdb, `supervisor db upgrade` and the copy of the server's binaries take a third of the
CPU of a grid's start. The grids of a test run copy the data of the folder that
DEVGRID_LEDGER_TEMPLATE names (ledger_template.py makes it), and share its binaries by
hard links; without that variable, each grid makes its own.
"""

import os
import subprocess
from pathlib import Path

from devgrid.processes import Processes

TEMPLATE = "DEVGRID_LEDGER_TEMPLATE"
POSTGRES = "postgres"
DATA = "data"
MARKER_FILE = "copied-ledger"


def copy_ledger(folder: Path) -> None:
    """Give a new Postgres in that folder a copy of the template, if there is one."""
    template = os.environ.get(TEMPLATE)
    if template is None:
        return
    for source in Path(template).iterdir():
        if source.name == DATA or not _link(source, folder):
            copy(source, folder)
    (folder / MARKER_FILE).touch()


def _link(source: Path, folder: Path) -> bool:
    """Whether the files could be linked: not to another file system."""
    argv = ["cp", "--archive", "--link", str(source), str(folder)]
    return subprocess.run(argv, capture_output=True).returncode == 0


def copy(source: Path, folder: Path) -> None:
    """Copy a folder into another one. The files keep their owners: that of the data is
    the user of the database.
    """
    subprocess.run(["cp", "--archive", str(source), str(folder)], check=True)


def has_copied_ledger(processes: Processes) -> bool:
    """Whether the Postgres of a grid began with a copy."""
    return (processes.folder / POSTGRES / MARKER_FILE).exists()
