"""The Linux users of a grid, through nss_wrapper: customers have names of 42
characters, which useradd refuses.

nss_wrapper makes the processes that load it read other files than /etc/passwd and
/etc/group; nothing of the machine changes. locked_lookups.c makes it safe for threads.
"""

import ctypes.util
import fcntl
import os
import pwd
import subprocess
from collections.abc import Sequence
from pathlib import Path

from devgrid.processes import StartError

LIBRARY = "libnss_wrapper.so"
LOCK = Path(__file__).with_name("locked_lookups.c")
FIRST_UID = 200_000
BENCHMARK_USER = "benchmark"
# reads no start-up file when sshd runs a command, whether it is dash or bash
SAFE_SHELL = "/bin/sh"


class Users:
    """The users that one grid's SLURM and sshd have. More may be added while these
    run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "users"
        self.homes = folder / "home"
        self._passwd = self.folder / "passwd"
        self._group = self.folder / "group"
        self._lock = self.folder / "locked_lookups.so"
        if not self._passwd.exists():
            self.folder.mkdir(parents=True)
            self.homes.mkdir()
            _build_lock(self._lock)
            self._passwd.write_text(self._machines_users())
            self._group.write_text(Path("/etc/group").read_text())

    def add(self, name: str, shell: str = SAFE_SHELL) -> int:
        """Make a user with a home, unless the user exists. Returns the uid. With bash
        as shell, the programs that sshd runs read the user's start-up files.
        """
        with (self.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            uid_of = {
                line.split(":")[0]: int(line.split(":")[2])
                for line in self._passwd.read_text().splitlines()
            }
            if name in uid_of:
                return uid_of[name]
            uid = max(
                FIRST_UID,
                *(number + 1 for number in uid_of.values() if number < 2 * FIRST_UID),
            )
            home = self.homes / name
            home.mkdir()
            os.chown(home, uid, uid)
            _append(self._group, f"{name}:x:{uid}:")
            _append(self._passwd, f"{name}:x:{uid}:{uid}::{home}:{shell}")
            return uid

    def set_shell(self, name: str, shell: str) -> None:
        """Change the login shell of a user."""
        self._change(name, 6, shell)

    def set_home(self, name: str, home: Path) -> None:
        """Change the home of a user. The owner of the folder stays."""
        self._change(name, 5, str(home))

    def set_uid(self, name: str, uid: int) -> None:
        """Change the uid of a user. Another user may have the same one."""
        self._change(name, 2, str(uid))

    def _change(self, name: str, number: int, value: str) -> None:
        lines = [line.split(":") for line in self._passwd.read_text().splitlines()]
        for fields in lines:
            if fields[0] == name:
                fields[number] = value
        _replace(self._passwd, [":".join(fields) for fields in lines])

    def home(self, name: str) -> Path:
        """The home of a user: a customer's jobs write their logs there."""
        return self.homes / name

    def _machines_users(self) -> str:
        """The users of this machine. The admin gets a home in the grid: a session over
        SSH would read the start-up files of the real home, which may take long, or wait
        for a lock that a killed session has left.
        """
        home = self.homes / admin()
        home.mkdir(mode=0o700)
        lines = [
            line.split(":") for line in Path("/etc/passwd").read_text().splitlines()
        ]
        return "".join(
            ":".join([*f[:5], str(home), "/bin/sh"] if f[0] == admin() else f) + "\n"
            for f in lines
        )

    def environment(self) -> dict[str, str]:
        """The environment by which a process sees these users."""
        return {
            # the name without a path is for setuid programs, which ignore paths
            "LD_PRELOAD": f"{self._lock}:{LIBRARY}",
            "NSS_WRAPPER_PASSWD": str(self._passwd),
            "NSS_WRAPPER_GROUP": str(self._group),
        }


def admin() -> str:
    """The user who may run scontrol update."""
    return pwd.getpwuid(os.geteuid()).pw_name


def _append(file: Path, line: str) -> None:
    _replace(file, [file.read_text().rstrip("\n"), line])


def _replace(file: Path, lines: Sequence[str]) -> None:
    """Replace a file, so that readers see either the old one or the new one."""
    new = file.with_suffix(".new")
    new.write_text("".join(f"{line}\n" for line in lines))
    new.replace(file)


def _build_lock(library: Path) -> None:
    """Build the library that lets one thread at a time into nss_wrapper."""
    if ctypes.util.find_library("nss_wrapper") is None:
        raise StartError(
            f"{LIBRARY} is not installed; install the Debian package libnss-wrapper (make packages)"
        )
    argv = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(LOCK)]
    # linked with nss_wrapper, which then sets itself up first
    argv += ["-Wl,--no-as-needed", f"-l:{LIBRARY}"]
    try:
        subprocess.run(argv, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise StartError(
            "gcc is not installed; install the Debian packages gcc and libc6-dev (make packages)"
        ) from error
    except subprocess.CalledProcessError as error:
        raise StartError(f"gcc cannot build {LOCK.name}: {error.stderr}") from error
