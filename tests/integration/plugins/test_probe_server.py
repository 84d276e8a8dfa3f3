"""The small HTTP server, over real sockets: what it answers, and what a caller cannot
do to it.
"""

import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from devgrid.machine import deadline
from devgrid.processes import wait_until
from plugins.probes.http_server import (
    MAX_CONNECTIONS,
    REQUEST_BYTES,
    REQUEST_S,
    Page,
    ProbeServer,
)


def loopback() -> list[str]:
    """The addresses of this machine's loopback: a container may have IPv4 alone."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return ["127.0.0.1", "::1"]
    except OSError:
        return ["127.0.0.1"]


def fails() -> Page:
    raise RuntimeError("a page that fails")


@pytest.fixture
def failures() -> list[BaseException | None]:
    """The errors of pages, as they are handed to the log."""
    return []


@pytest.fixture
def server(failures: list[BaseException | None]) -> Iterator[ProbeServer]:
    pages = {"/livez": lambda: Page(b"well\n"), "/fails": fails}
    running = ProbeServer(
        "127.0.0.1:0", pages, lambda _: failures.append(sys.exception())
    )
    running.start()
    yield running
    running.stop()


@pytest.mark.parametrize("host", loopback())
def test_server__without_a_host__listens_at_all_addresses(host: str) -> None:
    """A Kubernetes cluster may have IPv6 alone."""
    pages = {"/livez": lambda: Page(b"well\n")}
    running = ProbeServer(":0", pages, lambda _: None)
    running.start()
    try:
        where = (host, running.server_port)
        with socket.create_connection(where, deadline(10)) as caller:
            caller.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
            assert caller.recv(100).startswith(b"HTTP/1.0 200")
    finally:
        running.stop()


def connected(server: ProbeServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_port), deadline(10))


def said(server: ProbeServer, request: bytes) -> bytes:
    """All that is answered until the server closes the connection; nothing where it
    does so at once.
    """
    with connected(server) as caller:
        caller.sendall(request)
        answer = b""
        try:
            while part := caller.recv(65536):
                answer += part
        except ConnectionResetError:
            pass  # closed with bytes left unread
        return answer


def status_of(server: ProbeServer, path: str) -> int:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{server.server_port}{path}", timeout=deadline(10)
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_page__get_and_head__are_answered_and_others_are_not(
    server: ProbeServer,
) -> None:
    assert said(server, b"GET /livez?verbose HTTP/1.1\r\nHost: x\r\n\r\n").endswith(
        b"\r\n\r\nwell\n"
    )
    assert said(server, b"HEAD /livez HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")
    assert said(server, b"POST /livez HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.0 501")
    assert status_of(server, "/etc/passwd") == 404


@pytest.mark.parametrize(
    "request_bytes",
    [b"\r\n\r\n", b"\0\xff\r\n\r\n", b"GET\r\n\r\n", b"GET /livez HTTP/9\r\n\r\n"],
)
def test_request__malformed__costs_one_connection(
    server: ProbeServer, request_bytes: bytes
) -> None:
    assert b"well" not in said(server, request_bytes)
    assert status_of(server, "/livez") == 200


def test_request__too_long__is_not_read_to_its_end(server: ProbeServer) -> None:
    assert said(server, b"GET /livez HTTP/1.1\r\nX: " + b"x" * REQUEST_BYTES) == b""
    assert status_of(server, "/livez") == 200


def test_request__byte_by_byte__is_given_up_after_its_time(server: ProbeServer) -> None:
    """A time-out of each read would hold the thread for as long as the caller likes."""
    begun_s = time.monotonic()
    with connected(server) as caller:
        caller.settimeout(0.1)
        while not _closed(caller):
            assert time.monotonic() - begun_s < deadline(REQUEST_S + 5)
    assert REQUEST_S * 0.9 < time.monotonic() - begun_s < deadline(REQUEST_S + 3)


def _closed(caller: socket.socket) -> bool:
    """Send a byte more, and see whether the server has gone."""
    try:
        caller.sendall(b"x")
        assert caller.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_connections__as_many_as_may_be__are_freed_by_themselves(
    server: ProbeServer,
) -> None:
    before = threading.active_count()
    with ExitStack() as open_ones:
        for _ in range(MAX_CONNECTIONS):
            open_ones.enter_context(closing(connected(server)))
        assert said(server, b"GET /livez HTTP/1.1\r\n\r\n") == b""
        assert threading.active_count() <= before + MAX_CONNECTIONS
        wait_until(
            lambda: said(server, b"GET /livez HTTP/1.1\r\n\r\n") != b"",
            "a free connection",
            10,
        )


def test_page__that_fails__is_no_answer_and_the_next_one_is(
    server: ProbeServer, failures: list[BaseException | None]
) -> None:
    assert said(server, b"GET /fails HTTP/1.1\r\n\r\n") == b""
    assert [repr(error) for error in failures] == ["RuntimeError('a page that fails')"]
    assert status_of(server, "/livez") == 200
