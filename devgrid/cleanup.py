"""Nothing of a grid outlives the program that started it, however that program ends.

A program that makes a state folder has a cleaner: a process in a session of its own, which no Ctrl-C reaches, and no child of
the program, so that it is not found by what kills the program with all its descendants. The cleaner knows the program's
folders by its standard input. When the program has ended, the cleaner ends what still runs in them and removes them. Before
that, the program tells it which folders are removed already, or must stay. The cleaner loads all of its code before the
first grid starts: the clone may have been changed or removed when the program ends.

A kernel's PR_SET_PDEATHSIG does not do: it holds for one thread's children, not for theirs, and a change of the user ends it.
"""

import atexit
import fcntl
import os
import select
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from devgrid import REPOSITORY
from devgrid.ancestors import end_with_command
from devgrid.cluster.linux_users import Users
from devgrid.cluster.slurm import cluster_folders, end_jobs
from devgrid.processes import Processes, wait_until
from devgrid.state_files import StateFileError

GONE_WITHIN_S = 30.0
TRIES = 3
# The shell ends at once, and process 1 becomes the cleaner's parent. What comes to all processes of a machine or of a container
# is ignored from the first moment.
APART = 'trap "" HUP INT TERM; exec 3<&0; "$@" <&3 3<&- &'
LOG = "cleanup.log"
READY = b"ready\n"


class Cleaner:
    """The cleaner of this program, as the program sees it."""

    def __init__(self) -> None:
        pidfd = os.pidfd_open(os.getpid())
        own = fcntl.fcntl(pidfd, fcntl.F_DUPFD_CLOEXEC, 20)  # the shell has a use for 3
        os.close(pidfd)
        argv = ["/bin/sh", "-c", APART, "sh", sys.executable, "-m", "devgrid.cleanup", str(own)]
        environment = {name: value for name, value in os.environ.items() if name != "DEVGRID_STATE"}
        child = subprocess.Popen(
            argv,
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[own],
            start_new_session=True,
        )
        os.close(own)
        assert child.stdin is not None and child.stdout is not None  # noqa: S101, PT018  they are pipes
        self._to, self._from = child.stdin, child.stdout
        child.wait()
        if self._from.readline() != READY:
            raise RuntimeError("the cleaner of devgrid does not start: try `python -m devgrid.cleanup 0 </dev/null`")
        self._lock = threading.Lock()
        atexit.register(self._end)

    def tell(self, word: str, folder: Path) -> None:
        """One line: `add` or `leave`, and the folder. Raises BrokenPipeError when something has ended the cleaner."""
        with self._lock:
            self._to.write(f"{word} {folder}\n".encode())
            self._to.flush()

    def _end(self) -> None:
        """The program has ended when its grids have."""
        self._to.close()
        self._from.read()  # until the cleaner has ended
        self._from.close()


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
    """That folder is removed, or must stay."""
    for cleaner in _cleaners:
        cleaner.tell("leave", folder)


# --- the cleaner's own process ------------------------------------------------------------------------------------------


def main(program: int) -> None:
    """Wait until the program of that pidfd has ended or has closed its end of the pipe; then clean up."""
    os.write(1, READY)
    for folder in _folders_left(program):
        _remove_if_it_can_be_done(folder)


def _remove_if_it_can_be_done(folder: Path) -> None:
    """Its processes may be ending for another reason at the same time. What cannot be removed is told in a log; the other
    folders are removed all the same.
    """
    for _ in range(TRIES):
        try:
            end_and_remove(folder)
            return
        except Exception as error:  # noqa: BLE001  told to the next reader of the folder
            with suppress(OSError), (folder / LOG).open("a") as log:
                log.write(f"{error!r}\n")


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


def end_and_remove(folder: Path) -> None:
    """End everything of a grid, also of one that is half dead, politely first: a Postgres that is killed leaves its shared
    memory behind.
    """
    if not folder.exists():
        return
    for own in reversed(cluster_folders(folder)):
        with suppress(StateFileError):  # its processes are found by their marks
            _end_jobs(own)
            Processes(own).stop_all()
    processes = Processes(folder)

    def gone() -> bool:
        processes.kill_strays()
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    wait_until(gone, f"{folder} to be removed", GONE_WITHIN_S, every_s=0.2)


def _end_jobs(folder: Path) -> None:
    if any(entry.name == "slurmctld" for entry in Processes(folder).running()):
        try:
            end_jobs(folder, Users(folder))
        except (OSError, subprocess.SubprocessError, TimeoutError) as error:
            (folder / LOG).write_text(
                f"the jobs did not end: {error!r}\n"
            )  # their processes are killed like all others


if __name__ == "__main__":
    main(int(sys.argv[1]))
