"""The embedded Postgres and Redis: one of each for all processes of a state folder,
which start, end or are killed.
"""

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import psycopg
import pytest
from redis import Redis
from redis.exceptions import RedisError

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.processes import wait_until
from devgrid.state_folder import new_state_folder
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.config.embedded_servers import EmbeddedServerError
from supervisor_tasks.config.private_files import StateFolderError
from supervisor_tasks.config.settings import load
from tests.support.embedded_users import PROGRAM
from tests.support.live_processes import signal_each

pytestmark = pytest.mark.slow  # starts and kills whole servers

AS_ROOT = os.geteuid() == 0


class User:
    """A process that uses the embedded servers until it is told to end."""

    def __init__(self, state: Path, program: str = PROGRAM) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=REPOSITORY,
            env={"PATH": "/usr/bin:/bin", "STATE_DIR": str(state)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def urls(self) -> list[str]:
        assert self.child.stdout is not None
        return self.child.stdout.readline().split()

    def end(self) -> None:
        self.child.communicate(timeout=deadline(90.0))

    def kill(self) -> None:
        self.child.kill()
        self.end()


@pytest.fixture(scope="module")
def prepared() -> Iterator[Path]:
    """A state folder whose Postgres has been initialised; tests take copies of it."""
    state = new_state_folder()
    (state / "postgres").mkdir()
    embedded_servers.postgres(state / "postgres")
    yield state
    shutil.rmtree(state)


@pytest.fixture
def state(prepared: Path) -> Iterator[Path]:
    folder = new_state_folder()
    subprocess.run(["cp", "-a", f"{prepared}/.", str(folder)], check=True)
    # else the recovery of a Postgres that a test kills waits for the whole copy
    subprocess.run(["sync", "-f", str(folder)], check=True)
    yield folder
    kill_servers(folder)
    shutil.rmtree(folder)


@pytest.fixture
def users(state: Path) -> Iterator[Callable[[], User]]:
    with ExitStack() as ends:

        def start() -> User:
            user = User(state)
            ends.callback(user.end if user.child.poll() is None else lambda: None)
            return user

        yield start


def servers(state: Path) -> list[psutil.Process]:
    """The servers of a folder, without the children of Postgres."""
    found = []
    for process in psutil.process_iter(["cmdline", "ppid"]):
        words = process.info["cmdline"] or [""]
        if str(state) in " ".join(words) and (
            "redis-server" in words[0] or words[0].endswith("bin/postgres")
        ):
            found.append(process)
    # As it was seen: a child of Postgres may have ended by now.
    pids = {process.pid for process in found}
    return [process for process in found if process.info["ppid"] not in pids]


def kill_servers(state: Path) -> None:
    """Kill what still runs, at the end of a test."""
    left = servers(state)
    signal_each(left, signal.SIGKILL)
    psutil.wait_procs(left, deadline(10.0))


def connect(state: Path) -> psycopg.Connection:
    return psycopg.connect(
        f"postgresql://postgres@/postgres?host={state / 'postgres' / 'run'}",
        autocommit=True,
    )


def value(state: Path, query: str) -> object:
    with connect(state) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def test_urls__configured__are_used_as_they_are() -> None:
    given = {
        "DATABASE_URL": "postgresql://u:p@h:5/d?sslmode=require",
        "BROKER_URL": "redis://h/1",
    }
    settings = load(environment=given)
    assert (
        embedded_servers.database_url(settings)
        == "postgresql+psycopg://u:p@h:5/d?sslmode=require"
    )
    assert embedded_servers.broker_url(settings) == "redis://h/1"


def test_servers__several_users_at_once__share_one_of_each(
    state: Path, users: Callable[[], User]
) -> None:
    started = [users() for _ in range(3)]
    urls = [user.urls() for user in started]
    assert urls[0] == urls[1] == urls[2]
    assert (
        urls[0][0]
        == f"postgresql+psycopg://postgres@/postgres?host={state / 'postgres' / 'run'}"
    )
    assert len(servers(state)) == 2
    with Redis(unix_socket_path=urls[0][1].removeprefix("redis+socket://")) as redis:
        assert redis.ping()
        assert redis.config_get("save") == {"save": ""}
    assert value(state, "SHOW fsync") == "on"
    assert value(state, "SHOW max_connections") == "200"
    assert value(state, "SHOW shared_buffers") == "32MB"
    assert value(state, "SHOW listen_addresses") == ""
    for user in started[:2]:
        user.end()
    assert len(servers(state)) == 2
    started[2].end()
    assert servers(state) == []


def test_servers__user_killed__next_one_takes_over_the_same(
    state: Path, users: Callable[[], User]
) -> None:
    first = users()
    first.urls()
    running = sorted(server.pid for server in servers(state))
    first.kill()
    assert sorted(server.pid for server in servers(state)) == running
    second = users()
    second.urls()
    assert sorted(server.pid for server in servers(state)) == running
    second.end()
    assert servers(state) == []


def test_servers__killed__next_user_starts_them_on_the_same_data(
    state: Path, users: Callable[[], User]
) -> None:
    first = users()
    first.urls()
    with connect(state) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    for server in servers(state):
        server.kill()
    first.end()
    users().urls()
    assert value(state, "SELECT answer FROM kept") == 42


def test_servers__killed_while_used__start_again_and_end_with_the_last_user(
    state: Path, users: Callable[[], User]
) -> None:
    first, second = users(), users()
    urls = first.urls()
    assert second.urls() == urls
    with connect(state) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    killed = {server.pid for server in servers(state)}
    for _ in range(2):
        for server in servers(state):
            server.kill()
        wait_until(
            lambda: both_answer(state), "both servers to be there again", 60.0, 0.1
        )
    assert value(state, "SELECT answer FROM kept") == 42
    assert len(servers(state)) == 2
    assert killed.isdisjoint(server.pid for server in servers(state))
    first.end()
    assert len(servers(state)) == 2
    second.end()
    assert servers(state) == []


def both_answer(state: Path) -> bool:
    try:
        with Redis(unix_socket_path=str(state / "redis" / "redis.sock")) as redis:
            return bool(redis.ping()) and value(state, "SELECT 1") == 1
    except (RedisError, psycopg.OperationalError):
        return False


def test_servers__looked_after_all_the_time__end_with_the_last_user(
    state: Path,
) -> None:
    """The process that looks after them is at work just when they are left."""
    at_once = "from supervisor_tasks.config import embedded_servers\nembedded_servers.CHECK_EVERY_S = 0\n"
    user = User(state, at_once + PROGRAM)
    user.urls()
    for server in servers(state):
        server.kill()
    user.end()
    assert servers(state) == []


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_server__asked_to_end_before_it_can_hear_it__ends(
    kind: str, state: Path
) -> None:
    """As in a program that a shell has started in the background: SIGINT is ignored
    until the server has its own handler.
    """
    folder = state / kind
    folder.mkdir(exist_ok=True)
    program = f"""
import signal
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_IGN)
from supervisor_tasks.config import embedded_servers as embedded
folder = Path({str(folder)!r})
server = embedded.{kind}(folder)
embedded._start(server)
embedded._stop(server)
"""
    argv = [sys.executable, "-c", program]
    subprocess.run(argv, cwd=REPOSITORY, check=True, timeout=deadline(120.0))
    assert servers(state) == []


def test_postgres__all_connections_taken__is_left_running(
    state: Path, users: Callable[[], User]
) -> None:
    users().urls()
    before = sorted(server.pid for server in servers(state))
    with ExitStack() as taken:
        for _ in range(200):
            try:
                taken.enter_context(connect(state))
            except psycopg.OperationalError:
                break
        users().urls()
        assert set(before) <= {server.pid for server in servers(state)}
    assert value(state, "SELECT 1") == 1


def test_postgres__initialising_killed__next_start_initialises_again() -> None:
    state = new_state_folder()
    folder = state / "postgres"
    folder.mkdir()
    program = (
        "from pathlib import Path; from supervisor_tasks.config import embedded_servers; "
        f"embedded_servers.postgres(Path({str(folder)!r}))"
    )
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", program], cwd=REPOSITORY, start_new_session=True
        )
        wait_until(
            lambda: any(folder.glob("data*/PG_VERSION")),
            "initdb to have begun",
            20.0,
            0.001,
        )
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(deadline(10.0))
        user = User(state)
        assert user.urls()[0].startswith("postgresql+psycopg://")
        assert value(state, "SELECT count(*) > 0 FROM pg_proc") is True
        user.end()
    finally:
        kill_servers(state)
        shutil.rmtree(state)


@pytest.mark.skipif(not AS_ROOT, reason="only root runs Postgres as another user")
def test_postgres__as_root__runs_with_no_right_of_root(
    state: Path, users: Callable[[], User]
) -> None:
    users().urls()
    (postgres,) = [server for server in servers(state) if server.username() != "root"]
    assert postgres.username() == embedded_servers.DATABASE_USER
    assert 0 not in postgres.gids()
    status = Path(f"/proc/{postgres.pid}/status").read_text()
    (groups,) = [
        line.partition(":")[2].split()
        for line in status.splitlines()
        if line.startswith("Groups:")
    ]
    assert groups == []


def test_postgres__socket__is_closed_to_other_users(
    state: Path, users: Callable[[], User]
) -> None:
    users().urls()
    for path in (
        state / "postgres" / "run" / ".s.PGSQL.5432",
        state / "redis" / "redis.sock",
    ):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_state_folder__too_long_for_a_socket__says_so(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    settings = load(environment={"STATE_DIR": str(folder)})
    with pytest.raises(
        StateFolderError, match="a Unix socket may have 107: choose a shorter folder"
    ):
        embedded_servers.database_url(settings)
    with pytest.raises(StateFolderError, match="choose a shorter folder"):
        embedded_servers.broker_url(settings)


@pytest.mark.skipif(not AS_ROOT, reason="only root runs Postgres as another user")
def test_state_folder__closed_to_postgres__says_so() -> None:
    state = new_state_folder()
    state.chmod(0o700)
    try:
        with pytest.raises(StateFolderError, match=f"{state} is closed to other users"):
            embedded_servers.database_url(
                load(environment={"STATE_DIR": str(state / "s")})
            )
    finally:
        shutil.rmtree(state)


def test_server__cannot_start__error_names_the_log(state: Path) -> None:
    (state / "postgres" / "data" / "postgresql.conf").write_text("nonsense = yes\n")
    with pytest.raises(EmbeddedServerError, match=r"server\.log"):
        embedded_servers.database_url(load(environment={"STATE_DIR": str(state)}))


def test_servers__asked_for_by_several_threads__are_one_of_each(state: Path) -> None:
    program = """
from concurrent.futures import ThreadPoolExecutor
from supervisor_tasks.config.embedded_servers import broker_url
from supervisor_tasks.config.settings import load_or_exit
with ThreadPoolExecutor(4) as pool:
    print(len(set(pool.map(broker_url, [load_or_exit()] * 4))))
"""
    environment = {"PATH": "/usr/bin:/bin", "STATE_DIR": str(state)}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=deadline(60.0),
    )
    assert (ended.returncode, ended.stdout) == (0, "1\n")
    assert servers(state) == []
