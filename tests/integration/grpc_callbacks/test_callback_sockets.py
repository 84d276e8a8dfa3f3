"""Where the gRPC process listens: the addresses of LISTEN_ADDRESS, and a folder for
Unix sockets that only it enters.
"""

import errno
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devgrid.machine import deadline
from grpc_callbacks.connection_acceptor import listening_sockets
from grpc_callbacks.private_sockets import SocketFolder
from supervisor_tasks.config.settings import SettingsError

V4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
V6_NOT_HERE = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 0, 0, 0))


def names(monkeypatch: pytest.MonkeyPatch, *found: Any) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: list(found))


def test_listening_sockets__one_address_is_not_here__listens_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names(monkeypatch, V6_NOT_HERE, V4)
    (only,) = listening_sockets("localhost:0")
    with only:
        assert only.getsockname()[0] == "127.0.0.1"


def test_listening_sockets__name_with_one_address_twice__listens_there_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names(monkeypatch, V4, V4)
    (only,) = listening_sockets("localhost:0")
    only.close()


def test_listening_sockets__no_address_is_here__is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names(monkeypatch, V6_NOT_HERE)
    with pytest.raises(OSError, match="2001:db8::1"):
        listening_sockets("localhost:0")


def test_listening_sockets__one_address_is_in_use__is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken:
        names(monkeypatch, V4, (*V4[:4], taken.getsockname()))
        with pytest.raises(OSError, match=r"127\.0\.0\.2") as caught:
            listening_sockets("localhost:0")
    assert caught.value.errno == errno.EADDRINUSE


def test_folder__long_path__takes_sockets_and_is_removed(tmp_path: Path) -> None:
    state = tmp_path / ("long" * 30)
    folder = SocketFolder(state)
    with socket.socket(socket.AF_UNIX) as inner:
        inner.bind(folder.path("callers"))
    assert [made.stat().st_mode & 0o777 for made in state.iterdir()] == [0o700]
    folder.close()
    assert list(state.iterdir()) == []


def test_socket_folder__of_a_killed_process__is_removed_but_a_living_ones_stays(
    tmp_path: Path,
) -> None:
    program = "import sys, pathlib, os; from grpc_callbacks.private_sockets import SocketFolder\n"
    program += "SocketFolder(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    argv = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(argv, check=False, timeout=deadline(60))
    assert len(list(tmp_path.iterdir())) == 1
    first = SocketFolder(tmp_path)
    (only,) = tmp_path.iterdir()
    second = SocketFolder(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert only.exists()
    first.close()
    second.close()


def test_folder__state_dir_that_cannot_be_made__is_an_error_that_names_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        SettingsError, match=r"STATE_DIR: found .*/file/state'; expected a folder"
    ):
        SocketFolder(tmp_path / "file" / "state")


def test_folder__link_planted_in_its_place__leads_nowhere(tmp_path: Path) -> None:
    """Its sockets are found by the folder itself, not by its name."""
    state = tmp_path / "state"
    folder = SocketFolder(state)
    (made,) = state.iterdir()
    made.rename(tmp_path / "moved")
    made.symlink_to("/")
    with socket.socket(socket.AF_UNIX) as inner:
        inner.bind(folder.path("callers"))
    assert (tmp_path / "moved" / "callers").is_socket()
