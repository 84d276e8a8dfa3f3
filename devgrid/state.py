"""Where a grid keeps its files."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devgrid.process import Processes


def new_state_folder() -> Path:
    """A fresh folder that other Linux users may enter (the customers' jobs run from it), with a name short enough
    for the paths of Unix sockets (108 bytes at most).
    """
    folder = Path(tempfile.mkdtemp(prefix="grid-", dir="/var/tmp"))
    folder.chmod(0o755)
    return folder


@contextmanager
def private_processes() -> Iterator[Processes]:
    """Processes in a folder of their own; at the end they are stopped and the folder is gone."""
    folder = new_state_folder()
    processes = Processes(folder)
    try:
        yield processes
    finally:
        processes.stop_all()
        shutil.rmtree(folder, ignore_errors=True)
