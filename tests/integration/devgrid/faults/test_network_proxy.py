"""The network that misbehaves on demand, in front of an echo server."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from devgrid.faults.network_proxy import Direction, Fault, Proxy
from devgrid.machine import deadline
from devgrid.processes import wait_until

PATIENCE_S = 10.0


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        try:
            while data := self.request.recv(65_536):
                self.request.sendall(data)
        except ConnectionError:
            return


class _TcpEcho(socketserver.ThreadingTCPServer):
    daemon_threads = True


class _UnixEcho(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    with _TcpEcho(("127.0.0.1", 0), _Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def proxy(echo: str) -> Iterator[Proxy]:
    with Proxy.start(echo) as proxy:
        yield proxy


def connect(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.partition(":")
    return socket.create_connection((host, int(port)), deadline(PATIENCE_S))


def receive(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := client.recv(count - len(data))):
        data += more
    return data


def is_silent(client: socket.socket) -> bool:
    client.settimeout(0.3)
    try:
        return client.recv(1) == b"a byte, and not silence"
    except TimeoutError:
        return True
    finally:
        client.settimeout(deadline(PATIENCE_S))


def test_proxy__no_fault__passes_and_counts_the_bytes_both_ways(proxy: Proxy) -> None:
    data = bytes(range(256)) * 4000
    with connect(proxy) as client:
        threading.Thread(target=client.sendall, args=(data,), daemon=True).start()
        assert receive(client, len(data)) == data
    both = {Direction.TO_SERVER: len(data), Direction.TO_CLIENT: len(data)}
    wait_until(
        lambda: proxy.passed == both,
        "the last piece to be counted, which is when it has been sent",
        PATIENCE_S,
    )
    assert proxy.connections == 1


def test_proxy__client_sends_no_more__still_passes_the_answer(proxy: Proxy) -> None:
    with connect(proxy) as client:
        client.sendall(b"all")
        client.shutdown(socket.SHUT_WR)
        assert receive(client, 10) == b"all"


@pytest.mark.parametrize("direction", Direction)
def test_cut__at_a_byte__not_one_more_passes(
    proxy: Proxy, direction: Direction
) -> None:
    proxy.inject(direction, 5, Fault.CUT)
    with connect(proxy) as client:
        client.sendall(b"0123456789")
        proxy.wait_for_fault()
        with pytest.raises(ConnectionResetError):
            receive(client, 10)
    assert proxy.passed[direction] == 5
    with connect(proxy) as client:
        client.sendall(b"again")
        assert receive(client, 5) == b"again"


@pytest.mark.parametrize("before", [b"short", b"of any length"])
def test_cut__in_the_answer_to_a_second_request__the_first_comes_back_whole(
    proxy: Proxy, before: bytes
) -> None:
    with connect(proxy) as client:
        proxy.inject_in_answer(len(before), 3, Fault.CUT)
        client.sendall(before)
        assert receive(client, len(before)) == before
        client.sendall(b"0123456789")
        proxy.wait_for_fault()
        with pytest.raises(ConnectionResetError):
            receive(client, 10)
    assert proxy.passed[Direction.TO_CLIENT] == len(before) + 3


def test_hang__is_silent_also_to_newcomers__and_goes_on_where_it_was(
    proxy: Proxy,
) -> None:
    with connect(proxy) as client:
        proxy.inject(Direction.TO_CLIENT, 3, Fault.HANG)
        client.sendall(b"012345")
        assert receive(client, 3) == b"012"
        assert is_silent(client)
        with connect(proxy) as other:
            other.sendall(b"x")
            assert is_silent(other)
            proxy.fault(None)
            assert receive(other, 1) == b"x"
        assert receive(client, 3) == b"345"


def test_forget__is_silent_for_good__and_newcomers_pass(proxy: Proxy) -> None:
    with connect(proxy) as client:
        client.sendall(b"x")
        assert receive(client, 1) == b"x"
        proxy.fault(Fault.DROP)
        client.sendall(b"y")
        assert is_silent(client)
        with connect(proxy) as other:
            other.sendall(b"z")
            assert receive(other, 1) == b"z"
        proxy.fault(None)
        client.sendall(b"y")
        assert is_silent(client)


def test_lose__at_a_byte__the_rest_is_taken_and_not_passed_on(proxy: Proxy) -> None:
    with connect(proxy) as client:
        proxy.inject(Direction.TO_SERVER, 3, Fault.LOSE_TO_SERVER)
        client.sendall(b"012345")
        assert receive(client, 3) == b"012"
        wait_until(
            lambda: proxy.passed[Direction.TO_SERVER] == 6,
            "all bytes to be taken",
            PATIENCE_S,
        )
        assert is_silent(client)


def test_refuse__connections_old_and_new__are_reset_until_it_is_over(
    proxy: Proxy,
) -> None:
    with connect(proxy) as client:
        client.sendall(b"x")
        assert receive(client, 1) == b"x"
        proxy.fault(Fault.REFUSE)
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with pytest.raises(ConnectionResetError), connect(proxy) as client:
        client.recv(1)
    proxy.fault(None)
    with connect(proxy) as client:
        client.sendall(b"x")
        assert receive(client, 1) == b"x"


def test_proxy__delay_is_set__delays_each_chunk(proxy: Proxy) -> None:
    with connect(proxy) as client:
        # each direction: a client that is started late still finds it silent
        proxy.delay_s = 1.5
        client.sendall(b"x")
        assert is_silent(client)
        assert receive(client, 1) == b"x"


def test_proxy__server_on_a_unix_socket__passes_bytes(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with _UnixEcho(path, _Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Proxy.start(path) as proxy, connect(proxy) as client:
            client.sendall(b"x")
            assert receive(client, 1) == b"x"
        server.shutdown()


def test_proxy__server_gone__resets_the_client() -> None:
    with socket.socket() as closed_port:
        closed_port.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed_port.getsockname()[1]}"
        with (
            Proxy.start(address) as proxy,
            pytest.raises(ConnectionResetError),
            connect(proxy) as client,
        ):
            client.recv(1)
