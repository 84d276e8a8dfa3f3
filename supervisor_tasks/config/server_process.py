"""A server's process that several processes share: written down in a file, recognised, ended.

An id in a file may be another process's by now. So a process is recognised by its start, its user and its program, and is
signalled through a descriptor (pidfd_open(2)), which never means another process.
"""

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from supervisor_tasks.config.private_files import open_private, write_private

ASK_AGAIN_S = 1.0
COMM_CHARACTERS = 15  # of a process's name, which all users may read (proc(5))
DELETED = " (deleted)"  # so ends /proc/PID/exe after the program's file was replaced


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """Where a server's process is written down, the name of its program, and the user that it runs as."""

    record: Path
    program: str
    uid: int

    @property
    def _name(self) -> str:
        return self.program[:COMM_CHARACTERS]

    def write_down(self, pid: int) -> None:
        """This process is the server."""
        write_private(self.record, f"{pid} {_began(pid)}")

    def runs(self) -> bool:
        """Whether the process that was written down still runs, and is the server."""
        with self.handle() as handle:
            return handle is not None

    @contextmanager
    def handle(self) -> Iterator[int | None]:
        """A descriptor of the process; None when it has ended, or is not the server."""
        pid, began = self._written_down()
        try:
            handle = os.pidfd_open(pid) if pid else None
        except ProcessLookupError:
            handle = None
        try:
            yield handle if handle is not None and self._is_server(pid, began) else None
        finally:
            if handle is not None:
                os.close(handle)

    def end(self, timeout_s: float) -> bool:
        """Ask the server to end (SIGINT ends Postgres fast, and Redis too); returns whether it has ended in that time.

        It is asked again each second: a program that was started in the background ignores SIGINT, and so does its server until
        it has set its own handler. A signal that comes before that is lost.
        """
        deadline = time.monotonic() + timeout_s
        with self.handle() as handle:
            if handle is None:
                return True
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            while time.monotonic() < deadline:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGINT)
                if ended.poll(ASK_AGAIN_S * 1000):
                    return True
            return False

    def _written_down(self) -> tuple[int, str]:
        try:
            with open(open_private(self.record, os.O_RDONLY)) as file:  # noqa: PTH123  a descriptor
                pid, began = file.read().split(maxsplit=1)
                return int(pid), began
        except (OSError, ValueError):
            return 0, ""

    def _is_server(self, pid: int, began: str) -> bool:
        try:
            program = _program(pid)
            return began == _began(pid) and self.uid == _uid(pid) and program in (self.program, self._name)
        except OSError:
            return False


def _program(pid: int) -> str:
    """The name of a process's program. Root in a container may lack CAP_SYS_PTRACE and so may not see another user's program:
    then the process's name does. With it go the start and the user, from a record that no other user writes.
    """
    try:
        path = os.readlink(f"/proc/{pid}/exe").removesuffix(DELETED)  # noqa: PTH115  the text, with that suffix
    except PermissionError:
        return Path(f"/proc/{pid}/comm").read_text().removesuffix("\n")
    return Path(path).name


def _began(pid: int) -> str | None:
    """When a process started: the machine's start and the ticks since then (proc(5), field 22 of stat). None once it has
    ended.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None if state in "ZX" else f"{fields[18]} {boot}"


def _uid(pid: int) -> int:
    """The user that a process has rights of."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("Uid:")]
    return int(line.split()[2])
