"""Makes the data of a Postgres with a migrated, empty ledger, for copied_ledger.py:
`python -m devgrid.ledger_template FOLDER`.
"""

import os
import subprocess
import sys
from pathlib import Path

from devgrid.copied_ledger import POSTGRES
from devgrid.fleet import Fleet
from devgrid.services.start import start_servers
from devgrid.state_folder import private_processes


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
        data = processes.folder / POSTGRES / "data"
        subprocess.run(["cp", "--archive", str(data), str(folder)], check=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
