"""Where a grid keeps its files."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devgrid import cleanup
from devgrid.processes import Processes


def new_state_folder() -> Path:
    """A fresh folder that other Linux users may enter (the customers' jobs run from it), with a name short enough
    for the paths of Unix sockets (108 bytes at most). When this program has ended, so has what runs there, and the folder is
    gone, unless it was kept.
    """
    folder = Path(tempfile.mkdtemp(prefix="grid-", dir="/var/tmp"))
    cleanup.clean_up(folder)
    folder.chmod(0o755)
    return folder


def remove(processes: Processes) -> None:
    """Stop all processes of a state folder and remove it."""
    processes.stop_all()
    shutil.rmtree(processes.folder, ignore_errors=True)
    cleanup.leave(processes.folder)


def keep(folder: Path) -> None:
    """Let a state folder and what runs there outlive this program."""
    cleanup.leave(folder)


@contextmanager
def private_processes() -> Iterator[Processes]:
    """Processes in a folder of their own; at the end they are stopped and the folder is gone."""
    folder = new_state_folder()
    processes = Processes(folder)
    try:
        yield processes
    finally:
        remove(processes)
