"""A Postgres that begins with a copy of a migrated, empty ledger.

initdb and `supervisor db upgrade` take a quarter of the CPU of a grid's start. The grids
of a test run copy the data that DEVGRID_LEDGER_TEMPLATE names (ledger_template.py makes
it); without that variable, each makes its own.
"""

import os
import subprocess
from pathlib import Path

from devgrid.processes import Processes

TEMPLATE = "DEVGRID_LEDGER_TEMPLATE"
POSTGRES = "postgres"
MARKER_FILE = "copied-ledger"


def copy_ledger(folder: Path) -> None:
    """Give a new Postgres in that folder a copy of the template, if there is one."""
    template = os.environ.get(TEMPLATE)
    if template is None:
        return
    # the data's owner is the user of the database
    subprocess.run(["cp", "--archive", template, str(folder / "data")], check=True)
    (folder / MARKER_FILE).touch()


def has_copied_ledger(processes: Processes) -> bool:
    """Whether the Postgres of a grid began with a copy."""
    return (processes.folder / POSTGRES / MARKER_FILE).exists()
