"""Containers for tests: podman and buildah on a machine without a registry."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.processes import wait_until

BUILD = REPOSITORY / "build" / "images"
BASE = "docker.io/library/debian:bookworm-slim"  # as the Dockerfile names it
IMAGE = "localhost/grid-supervisor:test"
POSTGRES, REDIS = "localhost/postgres:test", "localhost/redis:test"
PROMETHEUS = "localhost/prometheus:test"
SERVERS = "tests/images/servers"
MIRROR = "http://deb.debian.org/debian"
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
# What Docker's slim image leaves out.
NOT_SLIM = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "var/cache/apt",
    "var/lib/apt/lists",
)
# crun needs a newer kernel's cgroups, and limits above the caller's own cannot be had
# by root in a container.
CONFIGURATION = """
[containers]
default_ulimits = ["nofile=1000:1000", "nproc=1000:1000"]
[engine]
runtime = "runc"
"""
BUILD_TIMEOUT_S = 1800.0
# $0 is a filter of podman's, $1 the name of a network or nothing.
REMOVE_AT_THE_END = """
cat > /dev/null
left=$(podman ps --all --quiet --filter "$0")
[ -z "$left" ] || podman rm --force --depend --volumes --time 0 $left
[ -z "$1" ] || podman network rm --force "$1"
"""


def engine(
    program: str | Path,
    *words: str | Path,
    check: bool = True,
    timeout_s: float = 120.0,
    folder: Path = REPOSITORY,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Run podman, buildah or podman-compose; what it printed."""
    configuration = _configured()
    done = subprocess.run(
        [program, *map(str, words)],
        cwd=folder,
        env={**environment, "CONTAINERS_CONF": str(configuration)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if check and done.returncode != 0:
        raise RuntimeError(
            f"{program} {' '.join(map(str, words))}: status {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def _configured() -> Path:
    """The file with CONFIGURATION."""
    BUILD.mkdir(parents=True, exist_ok=True)
    configuration = BUILD / "containers.conf"
    configuration.write_text(CONFIGURATION)
    return configuration


@contextmanager
def removing(which: str, network: str = "") -> Iterator[None]:
    """Remove the containers that podman's filter `which` finds, and the network, at the
    end: also when this process is killed, as its pipe ends then, too. Containers that
    stay would keep the ports that they published: the kernel leads them there.
    """
    configuration = _configured()
    keeper = subprocess.Popen(
        ["/bin/sh", "-c", REMOVE_AT_THE_END, which, network],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "CONTAINERS_CONF": str(configuration)},
        start_new_session=True,
    )
    try:
        yield
    finally:
        keeper.communicate(timeout=deadline(120))


def exists(image: str) -> bool:
    """Whether podman has the image."""
    return bool(engine("podman", "images", "--quiet", image).strip())


def provide_base() -> None:
    """Make the base image, where none was made or pulled before."""
    if exists(BASE):
        return
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        root = Path(folder) / "root"
        subprocess.run(
            ["debootstrap", "--variant=minbase", "bookworm", root, MIRROR],
            check=True,
            capture_output=True,
        )
        for name in NOT_SLIM:
            shutil.rmtree(root / name)
            (root / name).mkdir()
        (root / "etc/apt/apt.conf.d/99machine").write_text(apt_checks())
        archive = Path(folder) / "base.tar"
        subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
        engine("podman", "import", archive, BASE, timeout_s=600)


def apt_checks() -> str:
    """What this machine's apt checks of a mirror, as the image's apt must use the same
    one.
    """
    dumped = subprocess.run(
        ["apt-config", "dump"], check=True, capture_output=True, text=True
    ).stdout
    return "".join(
        line + "\n" for line in dumped.splitlines() if line.startswith("Acquire::Check")
    )


def build(dockerfile: str, name: str, context: str = ".", **arguments: str) -> None:
    """Build an image from this clone, or a folder of it. Steps that did not change are
    taken from the last time.
    """
    (BUILD / "pip.conf").write_text("[global]\ncert = /etc/machine-authorities.crt\n")
    words: list[str | Path] = [
        "bud",
        "--layers",
        "--isolation",
        "chroot",
        "--pull-never",
    ]
    words += ["--volume", f"{AUTHORITIES}:/etc/machine-authorities.crt:ro"]
    words += ["--volume", f"{BUILD / 'pip.conf'}:/etc/pip.conf:ro"]
    for argument, value in arguments.items():
        words += ["--build-arg", f"{argument}={value}"]
    engine(
        "buildah",
        *words,
        "--file",
        dockerfile,
        "--tag",
        name,
        context,
        timeout_s=BUILD_TIMEOUT_S,
    )


def inspected(image: str) -> Any:
    """What podman knows of an image."""
    return json.loads(engine("podman", "image", "inspect", image))[0]


class Containers:
    """Containers of a test, which are removed with it. Their network is this
    machine's.
    """

    def __init__(self, folder: Path) -> None:
        self._prefix = f"{folder.name}-{os.getpid()}"
        self._after = ExitStack()
        self._after.enter_context(removing(f"name=^{self._prefix}-"))
        self._secrets = folder / "secrets"
        self._secrets.mkdir()
        self._secrets.chmod(0o755)

    def secret(self, name: str, text: str | bytes) -> Path:
        """A file that containers of any user can read."""
        file = self._secrets / name
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        file.chmod(0o444)
        return file

    def start(
        self,
        name: str,
        image: str,
        *words: str,
        environment: Mapping[str, str],
        user: str = "1000:1000",
        options: Sequence[str] = (),
    ) -> str:
        """Start a container as any site should: not root, read-only, without a
        capability; returns its name.
        """
        full = f"{self._prefix}-{name}"
        argv = [
            "run",
            "--detach",
            "--name",
            full,
            "--network",
            "host",
            "--user",
            user,
            "--cap-drop",
            "all",
        ]
        argv += [
            "--read-only",
            "--read-only-tmpfs=false",
            "--security-opt",
            "no-new-privileges",
        ]
        argv += ["--volume", f"{self._secrets}:/run/secrets/supervisor:ro", *options]
        for variable, value in environment.items():
            argv += ["--env", f"{variable}={value}"]
        engine("podman", *argv, image, *words)
        return full

    def execute(self, container: str, *words: str) -> tuple[int, str]:
        """Run a command in a container: status and output."""
        output = engine(
            "podman",
            "exec",
            container,
            "sh",
            "-c",
            '"$@" 2>&1; echo "status $?"',
            "sh",
            *words,
        )
        said, _, status = output.rstrip().rpartition("status ")
        return int(status), said

    def logs(self, container: str) -> str:
        """What a container has printed."""
        done = subprocess.run(
            ["podman", "logs", container], capture_output=True, text=True
        )
        return done.stdout + done.stderr

    def state(self, container: str) -> Any:
        """Its state: Status, ExitCode and more."""
        return json.loads(engine("podman", "container", "inspect", container))[0][
            "State"
        ]

    def wait_for_end(self, container: str, timeout_s: float = 60.0) -> int:
        """Its exit status."""
        wait_until(
            lambda: self.state(container)["Status"] == "exited",
            f"{container} to end",
            timeout_s,
        )
        return int(self.state(container)["ExitCode"])

    def can_be_asked_to_end(self, container: str) -> bool:
        """Whether its first process handles SIGTERM or holds it back, or has ended.
        While Python itself starts, it does neither, and the kernel drops the signal.
        """
        pid = self.state(container)["Pid"]
        status = Path(f"/proc/{pid}/status")
        if not (pid and status.exists()):
            return True
        masks = re.findall(
            r"^Sig(?:Blk|Cgt):\t(\w+)$", status.read_text(), re.MULTILINE
        )
        return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)

    def end(self, container: str, timeout_s: int) -> int:
        """Ask it to end, as orchestrators do; its exit status (137: killed after
        `timeout_s`, on a slow machine later).
        """
        patience_s = round(deadline(timeout_s))
        engine(
            "podman",
            "stop",
            "--time",
            str(patience_s),
            container,
            timeout_s=patience_s + 120,
        )
        return int(self.state(container)["ExitCode"])

    def remove(self) -> None:
        """Remove all of them."""
        self._after.close()
