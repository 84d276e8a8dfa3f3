"""A Debian whose first process is systemd, run by systemd-nspawn in a network of its
own.
"""

import hashlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from devgrid.machine import deadline
from devgrid.processes import wait_until
from tests.images.containers import AUTHORITIES, BUILD, MIRROR, apt_checks

SYSTEMD = ("systemd-sysv", "dbus", "libnss-systemd", "procps")  # of each machine
# What the how-to has the operator install is there already, as the machine's network is
# its own once it runs.
OF_THE_PAGE = (
    "ca-certificates",
    "curl",
    "openssh-client",
    "pipx",
    "postgresql",
    "python3-venv",
    "redis-server",
)
# What tells this machine's pip where packages are; the machine's own pip asks the same
# index.
PIP_FILES = (
    Path("/etc/pip.conf"),
    Path.home() / ".config/pip/pip.conf",
    Path.home() / ".pip/pip.conf",
)
PIP_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")
NSPAWN = ("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--console=pipe")
PIP_OF_THIS_MACHINE = Path("/root/pip-of-this-machine")
RELEASE = Path("/root/release")


def provide_root(packages: Sequence[str]) -> Path:
    """The archive of a Debian 12 with systemd and packages; it is made where none was
    made of these packages before.
    """
    names = ",".join([*SYSTEMD, *packages])
    archive = (
        BUILD / f"systemd-root-{hashlib.sha256(names.encode()).hexdigest()[:8]}.tar"
    )
    if archive.exists():
        return archive
    BUILD.mkdir(parents=True, exist_ok=True)
    new = archive.with_suffix(".new.tar")
    options = [f"--aptopt={line}" for line in apt_checks().splitlines()]
    argv = [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        *options,
        f"--include={names}",
        "bookworm",
    ]
    subprocess.run([*argv, str(new), MIRROR], check=True, capture_output=True)
    new.rename(archive)
    return archive


@contextmanager
def extracted_root(packages: Sequence[str] = OF_THE_PAGE) -> Iterator[Path]:
    """A folder with that Debian, which is removed with what lies beside it."""
    archive = provide_root(packages)
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="machine-") as folder:
        root = Path(folder) / "root"
        root.mkdir()
        subprocess.run(
            ["tar", "-C", root, "-xpf", archive, "--numeric-owner"], check=True
        )
        yield root


class Machine:
    """A machine that is removed with its root. `outside` is this machine's address in
    its network, `inside` its own.
    """

    def __init__(self, packages: Sequence[str] = OF_THE_PAGE) -> None:
        self._after = ExitStack()
        self.root = self._after.enter_context(extracted_root(packages))
        self.name = f"gs{os.getpid()}"
        network = f"10.231.{os.getpid() % 250}"
        self.outside, self.inside = f"{network}.1", f"{network}.2"
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._first_process = 0

    def put(self, path: Path | str, text: str | bytes) -> None:
        """Write a file of the machine."""
        file = self.root / str(path).lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)

    def install(self, commands: str) -> str:
        """Run commands in the release's folder before the machine is started, with this
        machine's network.
        """
        argv = [
            *NSPAWN,
            f"--directory={self.root}",
            "--resolv-conf=copy-host",
            f"--bind-ro={AUTHORITIES}",
        ]
        argv += [
            f"--bind-ro={file}:/etc/pip.conf"
            for file in list(filter(Path.exists, PIP_FILES))[:1]
        ]
        argv += [
            f"--setenv={name}={os.environ[name]}"
            for name in PIP_VARIABLES
            if name in os.environ
        ]
        argv += [
            f"--chdir={RELEASE}",
            f"--setenv=PIP_CERT={AUTHORITIES}",
            "bash",
            "-euo",
            "pipefail",
            "-c",
            commands,
        ]
        return _output(argv, commands, 900.0)

    def start(self) -> None:
        """Start systemd, and wait until it has started all units."""
        argv = [
            *NSPAWN,
            f"--machine={self.name}",
            f"--directory={self.root}",
            "--network-veth",
            "--boot",
        ]
        with self.root.with_name("console.log").open("wb") as log:
            self._nspawn = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until(lambda: bool(self._first()), "systemd to start", 60.0)
        (self._first_process,) = self._first()
        outer, inner = (
            f"ve-{self.name}",
            ["nsenter", f"--target={self._first_process}", "--net"],
        )
        wait_until(
            lambda: Path(f"/sys/class/net/{outer}").exists(),
            "the machine's network",
            60.0,
        )
        for argv in (
            ["ip", "addr", "add", f"{self.outside}/30", "dev", outer],
            ["ip", "link", "set", outer, "up"],
            [*inner, "ip", "addr", "add", f"{self.inside}/30", "dev", "host0"],
            [*inner, "ip", "link", "set", "host0", "up"],
        ):
            subprocess.run(argv, check=True)
        wait_until(
            lambda: self._state() in ("running", "degraded"),
            "systemd to have started all",
            120.0,
        )

    def run(self, commands: str, folder: Path = RELEASE) -> str:
        """Run commands in a folder of the running machine, as its root."""
        return _output(self._entered(["--all"], folder, [], commands), commands, 240.0)

    def install_again(self, commands: str, folder: Path) -> str:
        """Run commands of pip in a folder of the running machine, with the network of
        this one, where the index of its packages is.
        """
        self.put(PIP_OF_THIS_MACHINE / "ca.pem", Path(AUTHORITIES).read_bytes())
        variables = [f"PIP_CERT={PIP_OF_THIS_MACHINE / 'ca.pem'}"]
        for file in list(filter(Path.exists, PIP_FILES))[:1]:
            self.put(PIP_OF_THIS_MACHINE / "pip.conf", file.read_bytes())
            variables.append(f"PIP_CONFIG_FILE={PIP_OF_THIS_MACHINE / 'pip.conf'}")
        variables += [
            f"{name}={os.environ[name]}" for name in PIP_VARIABLES if name in os.environ
        ]
        spaces = ["--mount", "--uts", "--ipc", "--pid"]  # all but that of the network
        argv = self._entered(spaces, folder, variables, commands)
        return _output(argv, commands, 900.0)

    def succeeds(self, commands: str) -> bool:
        """Whether commands end with status 0."""
        try:
            self.run(commands)
        except RuntimeError:
            return False
        return True

    def stop(self) -> None:
        """End all its processes, and remove it."""
        if self._nspawn is not None:
            self._nspawn.send_signal(signal.SIGTERM)  # it has systemd end
            try:
                self._nspawn.wait(deadline(150))
            except subprocess.TimeoutExpired:
                left = psutil.Process(self._nspawn.pid).children()
                self._nspawn.kill()
                for process in left:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                self._nspawn.wait()
        self._after.close()

    def _entered(
        self,
        spaces: Sequence[str],
        folder: Path,
        variables: Sequence[str],
        commands: str,
    ) -> list[str]:
        """The command that runs commands in these namespaces of the machine."""
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return [
            "nsenter",
            f"--target={self._first_process}",
            *spaces,
            f"--wdns={folder}",
            "env",
            "-i",
            path,
            "HOME=/root",
            "LANG=C.UTF-8",
            *variables,
            "bash",
            "-euo",
            "pipefail",
            "-c",
            commands,
        ]

    def _first(self) -> list[int]:
        """The process that is number 1 inside; none while nspawn's other child, which
        starts it, is still there alone.
        """
        assert self._nspawn is not None
        if self._nspawn.poll() is not None:
            raise RuntimeError(
                f"systemd-nspawn ended: {self.root.with_name('console.log').read_text()}"
            )
        found = list[int]()
        for child in psutil.Process(self._nspawn.pid).children():
            with suppress(FileNotFoundError, ProcessLookupError):
                status = Path(f"/proc/{child.pid}/status").read_text()
                if re.search(r"^NSpid:\t\d+\t1$", status, re.MULTILINE):
                    found.append(child.pid)
        return found

    def _state(self) -> str:
        enter = ["nsenter", f"--target={self._first_process}", "--all"]
        return subprocess.run(
            [*enter, "systemctl", "is-system-running"], capture_output=True, text=True
        ).stdout.strip()


def _output(argv: list[str], commands: str, timeout_s: float) -> str:
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=deadline(timeout_s),
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{commands}\nstatus {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout
