"""Makes the data of a Postgres with a migrated, empty ledger, and a copy of its binaries,
for copied_ledger.py: `python -m devgrid.ledger_template FOLDER`.
"""

import os
import sys
from pathlib import Path

from devgrid.copied_ledger import DATA, POSTGRES, copy
from devgrid.fleet import Fleet
from devgrid.services.start import start_servers
from devgrid.state_folder import private_processes
from supervisor_tasks.config.embedded_servers import postgres_package


def make(folder: Path) -> None:
    """Make the template in that folder, which must not exist."""
    with private_processes() as processes:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(processes.folder),
            "STATE_DIR": str(processes.folder),
            "CLUSTER_NAME": "template",
            **start_servers(processes, None),
        }
        Fleet(processes, environment).migrate()
        processes.stop(processes.find(POSTGRES))
        folder.mkdir()
        package = postgres_package()
        for name in (DATA, package, f"{package}.libs"):
            source = processes.folder / POSTGRES / name
            if source.exists():  # only root runs Postgres from a copy
                copy(source, folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
