"""The folders in which grids keep their files."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devgrid import cleanup
from devgrid.processes import Processes


def new_state_folder() -> Path:
    """A fresh folder that other Linux users may enter (the customers' jobs run from
    it), with a name short enough for the paths of Unix sockets (108 bytes at most). At
    the end of this program, the processes in the folder are ended and the folder is
    removed, unless it was kept.
    """
    cleanup.start_cleaner()
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
    """Let a state folder and its processes outlive this program."""
    cleanup.leave(folder)


@contextmanager
def private_processes() -> Iterator[Processes]:
    """Processes in a folder of their own. At the end they are stopped and the folder is
    removed.
    """
    folder = new_state_folder()
    processes = Processes(folder)
    try:
        yield processes
    finally:
        remove(processes)
