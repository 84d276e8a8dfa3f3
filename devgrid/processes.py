"""Starts, finds and stops the processes of a grid, which are known by id and start
time.
"""

import json
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from devgrid.machine import Deadline
from devgrid.state_files import state_in

# set by `make coverage`: a process that has it in its environment is measured
MEASURED = "COVERAGE_PROCESS_CONFIG"
PATIENCE_S = 5.0
MAX_PAUSE_S = 1.0  # between two checks of a condition, however long a check takes
FOLDER_VARIABLES = (
    "DEVGRID_STATE",
    "HOME",
    "STATE_DIR",
)  # variables: a process belongs to the folder that one of them names. A job has its home there
SLURM = ("munged", "slurmctld", "slurmd", "slurmdbd", "slurmstepd")
# some lose these variables
DAEMONS = {
    *SLURM,
    "anvil",
    "iperf3",
    "mariadbd",
    "postgres",
    "redis-server",
    "slapd",
    "sshd",
}


class StartError(RuntimeError):
    """A part of the grid did not start; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Running:
    """A started process. `started_s` (seconds since the epoch) distinguishes it from a
    later one with the same id.
    """

    name: str
    pid: int
    started_s: float

    def process(self) -> psutil.Process | None:
        """The live process, or None once it has ended (a zombie has ended)."""
        try:
            process = psutil.Process(self.pid)
            same = (
                abs(process.create_time() - self.started_s) < 1
                and process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.NoSuchProcess:
            return None
        return process if same else None


class Processes:
    """Starts processes with a log each under `folder` and writes down their ids, so
    that any later program can stop them. Each child leads a session of its own and
    carries the folder's path as DEVGRID_STATE in its environment, by which stray
    grandchildren are found at the end.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "log"
        self._register = folder / "processes.json"
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._recipes: dict[str, Callable[[Mapping[str, str]], Running]] = {}
        self._lock = threading.Lock()  # parts of a grid are started side by side

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        user: int | None = None,
        cwd: Path | None = None,
        ready: Callable[[], bool] | None = None,
        timeout_s: float = 30.0,
    ) -> Running:
        """Start `argv` and wait until `ready()` is true. Raises StartError when it ends
        first or takes too long.
        """
        self._recipes[name] = lambda more: self.start(
            name,
            argv,
            env={**(os.environ if env is None else env), **more},
            user=user,
            cwd=cwd,
            ready=ready,
            timeout_s=timeout_s,
        )
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        environment = {
            **(os.environ if env is None else env),
            "DEVGRID_STATE": str(self.folder),
        }
        if MEASURED in os.environ and user is None:
            environment[MEASURED] = os.environ[MEASURED]
        with log.open("ab") as out:
            child = subprocess.Popen(
                [str(word) for word in argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=cwd,
                user=user,
                group=None if user is None else pwd.getpwuid(user).pw_gid,
                extra_groups=None if user is None else [],
                start_new_session=True,
            )
        self._children[child.pid] = child
        running = Running(name, child.pid, psutil.Process(child.pid).create_time())
        with self._lock:
            self._write([*self.running(), running])
        if ready is not None:
            try:
                wait_until(
                    lambda: child.poll() is not None or ready(),
                    f"{name} to be ready",
                    timeout_s,
                )
            except TimeoutError as error:
                raise StartError(f"{error}; end of {log}:\n{tail(log)}") from error
            if child.poll() is not None:
                raise StartError(
                    f"{name} ended with status {child.returncode}; end of {log}:\n{tail(log)}"
                )
        return running

    def reap(self) -> None:
        """Reap the children that have ended by themselves."""
        for child in list(self._children.values()):
            child.poll()

    def start_again(self, name: str, **environment: str) -> Running:
        """Start a process again that was started here under that name, in the same way,
        and with these variables, too. Raises KeyError when there was none.
        """
        recipe = self._recipes[name]
        try:
            return recipe(environment)
        finally:
            self._recipes[name] = recipe

    def running(self) -> list[Running]:
        """The processes that were started here and still run, oldest first."""
        return [entry for entry in self.started() if entry.process() is not None]

    def started(self) -> list[Running]:
        """The processes that were started here, oldest first, with those that have
        ended since the last start. Raises StateFileError.
        """
        if not self._register.exists():
            return []
        with state_in(self._register) as entries:
            return [Running(**entry) for entry in entries]

    def find(self, name: str) -> Running:
        """The live process of that name. Raises KeyError when there is none."""
        for entry in self.running():
            if entry.name == name:
                return entry
        raise KeyError(
            f"no process named {name!r} runs; running: {[entry.name for entry in self.running()]}"
        )

    def kill(
        self, running: Running, sig: signal.Signals = signal.SIGKILL, wait: bool = True
    ) -> None:
        """Send one signal to one process. With `wait`, waits until it has ended."""
        process = running.process()
        if process is not None:
            with suppress(psutil.NoSuchProcess):  # it ends at this moment
                process.send_signal(sig)
        if wait:
            wait_until(lambda: self._has_ended(running), f"{running.name} to end", 30.0)

    def signal_tree(self, running: Running, sig: signal.Signals) -> None:
        """Send one signal to a process and its descendants, parents first."""
        process = running.process()
        for member in (
            [] if process is None else [process, *process.children(recursive=True)]
        ):
            try:
                member.send_signal(sig)
            except psutil.NoSuchProcess:
                continue

    def stop(self, running: Running, patience_s: float = 10.0) -> None:
        """End a process by SIGTERM, or by SIGKILL if it has not ended after
        `patience_s`.
        """
        process = running.process()
        if process is None:
            return
        with suppress(psutil.NoSuchProcess):
            process.terminate()
        try:
            wait_until(
                lambda: self._has_ended(running), f"{running.name} to end", patience_s
            )
        except TimeoutError:
            self.kill(running)

    def stop_all(self) -> None:
        """End all processes that were started here, newest first, by SIGTERM and after
        PATIENCE_S by SIGKILL; then kill the strays that have our folder in their
        environment.
        """
        entries = list(reversed(self.running()))
        family = _descendants(
            entries
        )  # those that have lost the variable are no descendants any more when their parents have ended
        for entry in entries:
            process = entry.process()
            if process is not None:
                # other programs may be ending these too
                with suppress(psutil.NoSuchProcess):
                    process.terminate()
        try:
            wait_until(
                lambda: all(self._has_ended(entry) for entry in entries),
                "all processes to end",
                PATIENCE_S,
            )
        except TimeoutError:
            for entry in entries:
                self.kill(entry)
        for member in family:
            _kill(member)
        self.kill_strays()
        for child in self._children.values():
            # which reaps children that died earlier and were started again
            child.poll()
        self._write([])

    def kill_pythons(self) -> None:
        """Kill the Python processes that were started here: what they would save is
        removed with the folder, and an orderly end costs a fleet two seconds of CPU.
        """
        for running in self.running():
            process = running.process()
            with suppress(psutil.NoSuchProcess):
                if process is not None and process.cmdline()[:1] == [sys.executable]:
                    process.kill()

    def kill_strays(self) -> None:
        """Kill the processes with our folder in their environment, with their
        descendants, and the daemons that use our folder, but not this program and its ancestors. Other
        processes that name the folder, such as an editor or a pager, are not ours.
        """
        own = psutil.Process()
        spared = {own.pid, *(ancestor.pid for ancestor in own.parents())}
        for process in psutil.process_iter():
            if process.pid in spared:
                continue
            if self._names_our_folder(process.pid):
                _kill_tree(process)
            elif self._is_daemon(process):
                _kill(process)

    def _has_ended(self, running: Running) -> bool:
        child = self._children.get(running.pid)
        if child is not None:
            return child.poll() is not None  # which reaps it
        return running.process() is None

    def _names_our_folder(self, pid: int) -> bool:
        """Whether the environment of a process names our folder. psutil would stop at
        the first malformed entry, and the title of slurmstepd 22.05 overwrites the first
        one.
        """
        pairs = (entry.partition("=") for entry in _words(pid, "environ"))
        return any(
            name in FOLDER_VARIABLES and self._is_ours(value)
            for name, _, value in pairs
        )

    def _is_daemon(self, process: psutil.Process) -> bool:
        """Whether a process is a program in our folder, a daemon with a path there in
        its arguments (sshd and redis-server overwrite these with a title), or a
        slurmstepd with an open file there (the title of 24.11 overwrites its whole
        environment). A process with a terminal is not.
        """
        try:
            program, name, terminal = process.exe(), process.name(), process.terminal()
        except psutil.Error:
            return False
        if terminal is not None:
            return False
        words = [
            part
            for word in _words(process.pid, "cmdline")
            for part in re.split(r"[\s=:]", word)
        ]
        if name == "slurmstepd":
            words += open_files(process.pid)
        return self._is_ours(program) or (
            name in DAEMONS and any(map(self._is_ours, words))
        )

    def _is_ours(self, path: str) -> bool:
        """Whether this is our folder, or a path in it."""
        own = str(self.folder)
        return path == own or path.startswith(f"{own}/")

    def _write(self, entries: list[Running]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self._register.with_suffix(".new")
        new.write_text(json.dumps([asdict(entry) for entry in entries]))
        new.replace(self._register)


def _kill_tree(process: psutil.Process) -> None:
    try:
        members = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for member in members:
        _kill(member)


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


def _descendants(entries: Sequence[Running]) -> list[psutil.Process]:
    found = list[psutil.Process]()
    for process in filter(None, (entry.process() for entry in entries)):
        with suppress(psutil.NoSuchProcess):
            found += process.children(recursive=True)
    return found


def _words(pid: int, file: str) -> list[str]:
    """The words in a file of /proc about a process; none if the process has ended."""
    try:
        return [
            os.fsdecode(word)
            for word in Path(f"/proc/{pid}/{file}").read_bytes().split(b"\0")
        ]
    except OSError:
        return []


def open_files(pid: int) -> list[str]:
    """The files that a process has open; none if it has ended."""
    found = list[str]()
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # it closes just now
                found.append(str(descriptor.readlink()))
    return found


def wait_until(
    condition: Callable[[], bool], what: str, timeout_s: float, every_s: float = 0.05
) -> None:
    """Wait for a condition, on a slow machine longer than `timeout_s`. Raises
    TimeoutError with `what`. The pause between two checks is `every_s`, and at least
    four times as long as a check takes, to leave the machine to the work that is
    awaited.
    """
    deadline = Deadline(timeout_s)
    while True:
        begun_s = time.monotonic()
        if condition():
            return
        took_s = time.monotonic() - begun_s
        if deadline.is_over():
            raise TimeoutError(
                f"waited {deadline.waited_s:.0f} s for {what}; on a quiet machine {timeout_s:g} s are enough"
            )
        time.sleep(max(every_s, min(4 * took_s, MAX_PAUSE_S)))


def answers(port: int) -> bool:
    """Whether something accepts connections on that port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def unix_socket_answers(path: Path) -> bool:
    """Whether something accepts connections on that Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(str(path)) == 0


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log file."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
