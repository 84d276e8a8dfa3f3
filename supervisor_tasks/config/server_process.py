"""A server that several processes share: they record its process in a file, recognise
it, and end it.

The kernel may have reused the process id in the file. So a process is recognised by its
start, its user and its program. Signals go through a descriptor (pidfd_open(2)), which
never means another process.
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
# the length of a process's name, which all users may read (proc(5))
COMM_CHARACTERS = 15
DELETED = " (deleted)"  # the end of /proc/PID/exe after the program's file was replaced


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """The file with a server's process, the name of its program, and the user that it
    runs as.
    """

    record: Path
    program: str
    uid: int

    @property
    def _name(self) -> str:
        return self.program[:COMM_CHARACTERS]

    def record_pid(self, pid: int) -> None:
        """Record that this process is the server. Raises OSError; a retry helps once
        the disk takes files again.
        """
        write_private(self.record, f"{pid} {_start(pid)}")

    def runs(self) -> bool:
        """Return whether the recorded process still runs and is the server."""
        with self.handle() as handle:
            return handle is not None

    @contextmanager
    def handle(self) -> Iterator[int | None]:
        """Open a descriptor of the process; None when it has ended, or is not the
        server.
        """
        pid, start = self._recorded()
        handle = _descriptor(pid)
        if handle is None:
            yield None
            return
        try:
            if self._is_server(pid, start):
                yield handle
            else:
                yield None
        finally:
            os.close(handle)

    def end(self, timeout_s: float) -> bool:
        """Ask the server to end by SIGINT (Postgres's fast shutdown; Redis ends too);
        returns whether it ended in time.

        Sends the signal each second, as a signal can be lost. A program that was
        started in the background ignores SIGINT. So does the server that it starts,
        until the server has installed its own handler.
        """
        deadline = time.monotonic() + timeout_s
        with self.handle() as handle:
            if handle is None:
                return True
            end = select.poll()
            end.register(handle, select.POLLIN)
            while time.monotonic() < deadline:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGINT)
                if end.poll(ASK_AGAIN_S * 1000):
                    return True
            return False

    def _recorded(self) -> tuple[int, str]:
        """Return the server's process id and start by the record; 0 and "" without a
        readable one.
        """
        try:
            with open(open_private(self.record, os.O_RDONLY)) as file:  # noqa: PTH123  a descriptor
                pid, start = file.read().split(maxsplit=1)
                return int(pid), start
        except (OSError, ValueError):
            return 0, ""

    def _is_server(self, pid: int, start: str) -> bool:
        try:
            program = _program(pid)
            if (start, self.uid) != (_start(pid), _uid(pid)):
                return False
        except OSError:
            return False
        return program in (self.program, self._name)


def _descriptor(pid: int) -> int | None:
    """Open a descriptor of a process; None for the pid 0, and when the process has
    ended.
    """
    if pid == 0:
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _program(pid: int) -> str:
    """Return the name of a process's program.

    Root in a container can lack CAP_SYS_PTRACE, and then cannot see another user's
    program: this function returns the process's name instead. That is enough, because
    the caller also compares the start and the user with a record that no other user can
    write.
    """
    try:
        path = os.readlink(f"/proc/{pid}/exe").removesuffix(DELETED)  # noqa: PTH115  the text, with that suffix
    except PermissionError:
        return Path(f"/proc/{pid}/comm").read_text().removesuffix("\n")
    return Path(path).name


def _start(pid: int) -> str | None:
    """Return when a process started, as a text: the ticks since the machine's boot
    (proc(5), field 22 of stat) and the boot's id. None when the process has ended.
    """
    try:
        state, *fields = (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        )
    except OSError:
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if state in "ZX":
        return None
    return f"{fields[18]} {boot}"


def _uid(pid: int) -> int:
    """Return the user whose rights a process has (the effective user)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("Uid:")]
    return int(line.split()[2])
