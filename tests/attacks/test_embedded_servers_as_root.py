"""Another Linux user tries to become root, or to read the ledger, through the embedded
servers that root starts.
"""

import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.processes import wait_until
from devgrid.state_folder import new_state_folder
from supervisor_tasks.config.private_files import open_private, write_private
from supervisor_tasks.config.server_process import ServerProcess
from tests.support.embedded_users import PROGRAM
from tests.support.live_processes import asked, is_alive, signal_each

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root has rights to lose"
)

# as root in a container
WITHOUT_PTRACE = (
    "setpriv",
    "--bounding-set",
    "-sys_ptrace",
    "--inh-caps",
    "-sys_ptrace",
)
STRANGER = "nobody"  # a Linux user who has nothing to do with the supervisor


class User:
    """A process of root that uses the embedded servers until it is told to end."""

    def __init__(self, state: Path, *wrapper: str) -> None:
        self.child = subprocess.Popen(
            [*wrapper, sys.executable, "-c", PROGRAM],
            cwd=REPOSITORY,
            env={"PATH": os.defpath, "STATE_DIR": str(state)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.child.stdout is not None
        self.urls = self.child.stdout.readline().split()

    def end(self) -> str:
        """End the process. Returns its standard error."""
        return self.child.communicate(timeout=deadline(90))[1]


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    """A state folder whose servers have run once."""
    folder = new_state_folder()
    user = User(folder)
    user.end()
    yield folder
    end_servers(folder)
    shutil.rmtree(folder)


def end_servers(folder: Path) -> None:
    """End the servers of a folder, Postgres with all its children."""
    servers = [
        process for process in psutil.process_iter() if str(folder) in _command(process)
    ]
    signal_each(servers, signal.SIGINT)
    psutil.wait_procs(servers, 60)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def postmaster(state: Path) -> psutil.Process:
    """The Postgres of a folder. Its children have its command line in their first
    moment.
    """
    found = [
        process
        for process in psutil.process_iter()
        if f"-D {state}/" in _command(process)
    ]
    parents = asked(found, psutil.Process.ppid)
    pids = {process.pid for process in found}
    (server,) = (process for process, parent in parents.items() if parent not in pids)
    return server


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of root that has nothing to do with the servers."""
    child = subprocess.Popen(["sleep", "600"])
    yield child
    child.kill()
    child.wait()


def as_user(name: str, *argv: str | Path) -> int:
    """Run a command as another user. Returns its exit status."""
    entry = pwd.getpwnam(name)
    words = [str(word) for word in argv]
    return subprocess.run(
        words,
        user=entry.pw_uid,
        group=entry.pw_gid,
        extra_groups=[],
        cwd="/",
        capture_output=True,
    ).returncode


def users_of(state: Path) -> set[str]:
    """The users who can write below the folder: the owner of the data, and a
    stranger.
    """
    return {(state / "postgres" / "data").owner(), STRANGER} - {"root"}


def identity(pid: int) -> str:
    """The text of a server.pid that names a process."""
    return (
        f"{pid} {Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    )


def plant(user: str, path: Path, how: str) -> None:
    as_user(user, "sh", "-c", f'rm -rf "$1"; {how}', "sh", path)


def test_log__link_that_another_user_plants__is_not_written_through(
    state: Path, tmp_path: Path
) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_text("of root\n")
    tmp_path.chmod(0o755)
    for user in users_of(state):
        for server in ("postgres", "redis"):
            plant(user, state / server / "server.log", f'ln -s {treasure} "$1"')
    User(state).end()
    assert treasure.read_text() == "of root\n"


def test_locks__links_that_another_user_plants__make_no_files_of_roots(
    state: Path, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    for user in users_of(state):
        for name in ("start.lock", "users.lock"):
            plant(user, state / "postgres" / name, f'ln -s {tmp_path / name} "$1"')
    User(state).end()
    assert list(tmp_path.iterdir()) == []


def test_file__a_link_or_another_users__is_not_opened(tmp_path: Path) -> None:
    """Another user may have planted such a file while all users could write to the
    folder.
    """
    treasure, link, strangers = (
        tmp_path / "treasure",
        tmp_path / "link",
        tmp_path / "strangers",
    )
    treasure.write_text("of root\n")
    link.symlink_to(treasure)
    strangers.touch()
    os.chown(strangers, pwd.getpwnam(STRANGER).pw_uid, -1)
    with pytest.raises(OSError, match="symbolic links"):
        open_private(link, os.O_WRONLY | os.O_TRUNC)
    with pytest.raises(PermissionError, match=f"belongs to '{STRANGER}'"):
        open_private(strangers, os.O_WRONLY)
    assert treasure.read_text() == "of root\n"


def test_pid__of_a_process_of_roots_that_another_user_writes_down__is_not_signalled(
    state: Path, victim: subprocess.Popen[bytes]
) -> None:
    user = User(state)
    for attacker in users_of(state):
        plant(
            attacker,
            state / "postgres" / "server.pid",
            f'echo "{identity(victim.pid)}" > "$1"',
        )
    user.end()
    assert victim.poll() is None


def test_end_servers__pid_file_by_root_names_no_server__process_is_not_signalled(
    state: Path, victim: subprocess.Popen[bytes]
) -> None:
    """Root's file may be a copy from another machine, or from before a restart."""
    user = User(state)
    (state / "postgres" / "server.pid").write_text(identity(victim.pid))
    user.end()
    assert victim.poll() is None
    end_servers(state)


def test_server_process__record_fits_in_part__is_no_server_and_is_not_signalled(
    victim: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """The kernel gives a process id again, also after a restart of the machine."""
    record, user = tmp_path / "server.pid", os.geteuid()
    program = Path(f"/proc/{victim.pid}/exe").resolve().name
    ServerProcess(record, program, user).record_pid(victim.pid)
    assert ServerProcess(record, program, user).runs()
    _, ticks, boot = record.read_text().split()
    started = f"{ticks} {boot}"
    for other_program, other_user, other_start in (
        ("postgres", user, started),
        (program, user + 1, started),
        (program, user, f"{int(ticks) - 1} {boot}"),
        (program, user, f"{ticks} {boot[::-1]}"),
        (program, user, ticks),
    ):
        write_private(record, f"{victim.pid} {other_start}")
        server = ServerProcess(record, other_program, other_user)
        assert not server.runs(), (other_program, other_user, other_start)
        assert server.end(1.0)
    assert victim.poll() is None


def test_servers__root_may_not_look_into_others_processes__start_and_end(
    state: Path, victim: subprocess.Popen[bytes]
) -> None:
    """In a container, root cannot read which program a process of another user runs."""
    first, second = User(state, *WITHOUT_PTRACE), User(state, *WITHOUT_PTRACE)
    postgres = postmaster(state)
    assert first.urls == second.urls != []
    assert [first.end(), second.end()] == ["", ""]
    # not reaped yet
    assert not is_alive(postgres)
    third = User(state, *WITHOUT_PTRACE)
    written, record = identity(victim.pid), state / "postgres" / "server.pid"
    boot = record.read_text().split()[2]
    record.write_text(f"{written} {boot}")
    third.end()
    assert victim.poll() is None
    end_servers(state)


def test_folder__that_another_user_has_made_before__is_refused() -> None:
    outer = new_state_folder()
    try:
        for name in ("postgres", "redis"):
            (outer / name).mkdir()
            os.chown(outer / name, pwd.getpwnam(STRANGER).pw_uid, -1)
        errors = User(outer).end()
        assert f"STATE_DIR: {outer / 'postgres'} belongs to {STRANGER!r}" in errors
    finally:
        shutil.rmtree(outer)


def test_folder__parent_is_writable_for_all_users__is_refused() -> None:
    outer = new_state_folder()
    try:
        (outer / "open").mkdir()
        (outer / "open").chmod(0o777)
        errors = User(outer / "open" / "state").end()
        assert f"STATE_DIR: {outer / 'open'} can be written by others" in errors
    finally:
        shutil.rmtree(outer)


def test_folder__behind_a_link_that_others_can_replace__is_refused() -> None:
    outer = new_state_folder()
    try:
        (outer / "open").mkdir()
        (outer / "state").mkdir(mode=0o711)
        link = outer / "open" / "link"
        link.symlink_to(outer / "state")
        (outer / "open").chmod(0o777)
        errors = User(link).end()
        assert f"STATE_DIR: {outer / 'open'} can be written by others" in errors
        os.lchown(link, pwd.getpwnam(STRANGER).pw_uid, -1)
        (outer / "open").chmod(0o1777)
        errors = User(link).end()
        assert f"STATE_DIR: {link} belongs to {STRANGER!r}" in errors
    finally:
        shutil.rmtree(outer)


def test_postgres__started_by_root__runs_as_a_user_made_for_it(state: Path) -> None:
    user = User(state)
    try:
        data = state / "postgres" / "data"
        found = [
            process
            for process in psutil.process_iter()
            if f"-D {data}" in _command(process)
        ]
        owners = set(asked(found, psutil.Process.username).values())
        assert owners == {data.owner()}
        assert owners.isdisjoint({"root", STRANGER})
    finally:
        errors = user.end()
        assert user.urls, errors


def test_sockets__another_user_connects__is_refused(state: Path) -> None:
    user = User(state)
    try:
        url = user.urls[0].replace("+psycopg", "")
        psycopg.connect(url).close()
        assert refused_by_postgres(url, STRANGER)
        redis_socket = user.urls[1].removeprefix("redis+socket://")
        assert as_user(STRANGER, "/usr/bin/python3", "-c", REACH, redis_socket) != 0
    finally:
        user.end()


REACH = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


def test_postgres__socket_is_open_to_all_users__still_asks_for_credentials(
    state: Path,
) -> None:
    """A backup tool, a container's mount or a mistaken chmod can open the socket."""
    user = User(state)
    try:
        url = user.urls[0].replace("+psycopg", "")
        folder = Path(url.rpartition("host=")[2])
        folder.chmod(0o755)
        wait_until((folder / ".s.PGSQL.5432").exists, "the socket", 10.0)
        (folder / ".s.PGSQL.5432").chmod(0o777)
        assert (
            as_user(STRANGER, "/usr/bin/python3", "-c", REACH, folder / ".s.PGSQL.5432")
            == 0
        )
        assert refused_by_postgres(url, STRANGER)
    finally:
        user.end()


def refused_by_postgres(url: str, name: str) -> bool:
    """Whether Postgres, or its folder, refuses the user; the child has read its
    libraries before it becomes that user.
    """
    entry = pwd.getpwnam(name)
    program = (
        "import os, psycopg\n"
        f"os.setgroups([]); os.setgid({entry.pw_gid}); os.setuid({entry.pw_uid})\n"
        f"psycopg.connect({url!r}, connect_timeout=5)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0 or "OperationalError" in done.stderr, done.stderr
    return done.returncode != 0
