"""Ends and removes a grid when the program that started it has ended, however that
program ended.

A program that makes a state folder has a cleaner: a process in a session of its own,
which no Ctrl-C reaches, and which is no child of the program, so that killing the
program with all its descendants does not kill it. The program sends the cleaner the
names of its folders over a pipe, and which of them are removed already or must stay.
When the program has ended, the cleaner ends the processes in the other folders and
removes these. The cleaner loads all of its code before the first grid starts: the clone
may have been changed or removed when the program ends.

The kernel's PR_SET_PDEATHSIG is not enough: it holds for one thread's children, not for
theirs, and a change of user ends it.
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
# The shell ends at once, and process 1 becomes the cleaner's parent. Signals that are
# sent to all processes of a machine or a container are ignored from the start.
DETACHED = 'trap "" HUP INT TERM; exec 3<&0; "$@" <&3 3<&- &'
LOG = "cleanup.log"
READY = b"ready\n"


class Cleaner:
    """The program's side of its cleaner."""

    def __init__(self) -> None:
        pidfd = os.pidfd_open(os.getpid())
        own = fcntl.fcntl(pidfd, fcntl.F_DUPFD_CLOEXEC, 20)  # the shell uses 3
        os.close(pidfd)
        argv = [
            "/bin/sh",
            "-c",
            DETACHED,
            "sh",
            sys.executable,
            "-m",
            "devgrid.cleanup",
            str(own),
        ]
        environment = {
            name: value for name, value in os.environ.items() if name != "DEVGRID_STATE"
        }
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
            raise RuntimeError(
                "the cleaner of devgrid does not start: try `python -m devgrid.cleanup 0 </dev/null`"
            )
        self._lock = threading.Lock()
        atexit.register(self._end)

    def send(self, command: str, folder: Path) -> None:
        """Send a line: `add` or `leave`, and the folder. Raises BrokenPipeError when
        the cleaner has been killed.
        """
        with self._lock:
            self._to.write(f"{command} {folder}\n".encode())
            self._to.flush()

    def _end(self) -> None:
        """Wait until the cleaner has ended, so that the program ends after its
        grids.
        """
        self._to.close()
        self._from.read()  # until the cleaner has ended
        self._from.close()


_cleaners: list[Cleaner] = []
_starting = threading.Lock()


def start_cleaner() -> None:
    """Start the cleaner, unless it runs, and have this program ended with the command
    that it is part of. Starting takes up to seconds: a program that made a folder before
    could be killed meanwhile, and the folder would stay.
    """
    with _starting:
        if not _cleaners:
            end_with_command()
            _cleaners.append(Cleaner())


def clean_up(folder: Path) -> None:
    """Have that folder removed at the end of this program."""
    start_cleaner()
    _cleaners[0].send("add", folder)


def leave(folder: Path) -> None:
    """Let the cleaner leave that folder alone: it is removed already, or must stay."""
    for cleaner in _cleaners:
        cleaner.send("leave", folder)


# --- the cleaner's own process --------------------------------------------------------


def main(program: int) -> None:
    """Wait until the program of that pidfd has ended or has closed its end of the pipe;
    then clean up.
    """
    os.write(1, READY)
    for folder in _folders_left(program):
        _try_to_remove(folder)


def _try_to_remove(folder: Path) -> None:
    """Remove a folder. Its processes may be ending for another reason at the same time,
    so this tries several times. The errors go to a log in the folder, and the other
    folders are still removed.
    """
    for _ in range(TRIES):
        try:
            end_and_remove(folder)
            return
        except Exception as error:  # noqa: BLE001  logged in the folder
            with suppress(OSError), (folder / LOG).open("a") as log:
                log.write(f"{error!r}\n")


def _folders_left(program: int) -> list[Path]:
    """The folders that the program leaves behind. Its children may keep the pipe open,
    so the end of its pidfd counts, too.
    """
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
            command, _, folder = os.fsdecode(line).partition(" ")
            folders.pop(folder, None)
            if command == "add":
                folders[folder] = None
        if not read:
            return [Path(folder) for folder in folders]


def end_and_remove(folder: Path) -> None:
    """End all processes of a grid, even of a damaged one, and remove its folder.
    Processes get SIGTERM first: a Postgres that is killed leaves its shared memory
    behind.
    """
    if not folder.exists():
        return
    for own in reversed(cluster_folders(folder)):
        with suppress(StateFileError):  # its processes are found by their environment
            _end_jobs(own)
            Processes(own).stop_all()
    processes = Processes(folder)

    def is_gone() -> bool:
        processes.kill_strays()
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    wait_until(is_gone, f"{folder} to be removed", GONE_WITHIN_S, every_s=0.2)


def _end_jobs(folder: Path) -> None:
    if any(entry.name == "slurmctld" for entry in Processes(folder).running()):
        try:
            end_jobs(folder, Users(folder))
        except OSError as error:  # their processes are killed like all others
            (folder / LOG).write_text(f"the jobs did not end: {error!r}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
