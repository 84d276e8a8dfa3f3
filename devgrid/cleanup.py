"""Nothing of a grid outlives the program that started it, however that program ends.

A program that makes a state folder has a cleaner: a process in a session of its own, which no Ctrl-C reaches. The cleaner
knows the program's folders by its standard input. When the program has ended, the cleaner ends what still runs in them and
removes them. Before that, the program tells it which folders are removed already, or are to stay.

A kernel's PR_SET_PDEATHSIG does not do: it holds for one thread's children, not for theirs, and a change of the user ends it.
"""

import atexit
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

from devgrid.ancestors import end_with_command

REPOSITORY = Path(__file__).resolve().parent.parent
GONE_WITHIN_S = 30.0
LOG = "cleanup.log"


class Cleaner:
    """The cleaner of this program, as the program sees it."""

    def __init__(self) -> None:
        own = os.pidfd_open(os.getpid())
        argv = [sys.executable, "-m", "devgrid.cleanup", str(own)]
        environment = {name: value for name, value in os.environ.items() if name != "DEVGRID_STATE"}
        self._child = subprocess.Popen(
            argv,
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[own],
            start_new_session=True,
        )
        os.close(own)
        self._lock = threading.Lock()
        atexit.register(self._end)

    def tell(self, word: str, folder: Path) -> None:
        """One line: `add` or `leave`, and the folder. Raises BrokenPipeError when something has ended the cleaner."""
        assert self._child.stdin is not None  # noqa: S101  it is a pipe
        with self._lock:
            self._child.stdin.write(f"{word} {folder}\n".encode())
            self._child.stdin.flush()

    def _end(self) -> None:
        """The program has ended when its grids have."""
        assert self._child.stdin is not None  # noqa: S101
        self._child.stdin.close()
        self._child.wait()


_cleaners: list[Cleaner] = []
_starting = threading.Lock()


def clean_up(folder: Path) -> None:
    """From now on that folder does not outlive this program, and this program not the command that it is part of."""
    with _starting:
        if not _cleaners:
            end_with_command()
            _cleaners.append(Cleaner())
    _cleaners[0].tell("add", folder)


def leave(folder: Path) -> None:
    """That folder is removed, or is to stay."""
    for cleaner in _cleaners:
        cleaner.tell("leave", folder)


# --- the cleaner's own process ------------------------------------------------------------------------------------------


def main(program: int) -> None:
    """Wait until the program of that pidfd has ended or has closed its end of the pipe; then clean up."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # sent to all processes of a machine or a container
        signal.signal(ignored, signal.SIG_IGN)
    for folder in _folders_left(program):
        try:
            _remove(folder)
        except Exception as error:
            (folder / LOG).write_text(f"{error!r}\n")
            raise


def _folders_left(program: int) -> list[Path]:
    """What the program leaves behind. Its children may hold the pipe open after its end, so its pidfd counts as well."""
    poll = select.poll()
    for descriptor in (0, program):
        poll.register(descriptor, select.POLLIN)
    folders: dict[str, None] = {}
    rest = b""
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        read = os.read(0, 65536) if 0 in ready else b""
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            word, _, folder = os.fsdecode(line).partition(" ")
            folders.pop(folder, None)
            if word == "add":
                folders[folder] = None
        if not read:
            return [Path(folder) for folder in folders]


def _remove(folder: Path) -> None:
    """End everything of a grid, politely first: a Postgres that is killed leaves its shared memory behind."""
    from devgrid.process import Processes, wait_until  # here: a cleaner that waits is small

    if not folder.exists():
        return
    _end_jobs(folder)
    processes = Processes(folder)
    processes.stop_all()

    def gone() -> bool:
        processes.kill_strays()
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    wait_until(gone, f"{folder} to be removed", GONE_WITHIN_S, every_s=0.2)


def _end_jobs(folder: Path) -> None:
    from devgrid.process import Processes
    from devgrid.slurm import end_jobs
    from devgrid.users import Users

    if any(entry.name == "slurmctld" for entry in Processes(folder).running()):
        try:
            end_jobs(folder, Users(folder))
        except (OSError, subprocess.SubprocessError, TimeoutError) as error:
            (folder / LOG).write_text(
                f"the jobs did not end: {error!r}\n"
            )  # their processes are killed like all others


if __name__ == "__main__":
    main(int(sys.argv[1]))
