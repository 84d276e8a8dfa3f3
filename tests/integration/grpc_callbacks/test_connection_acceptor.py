"""The acceptor of the gRPC process: which callers reach gRPC, and which do not."""

import asyncio
import resource
import socket
import ssl
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    MutableMapping,
)
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from grpc_callbacks import connection_acceptor as acceptor_module
from grpc_callbacks.connection_acceptor import (
    PREFACE,
    ConnectionAcceptor,
    allow_open_files,
    listening_sockets,
    name_asked_for,
)
from grpc_callbacks.connections import MAX_CONNECTIONS
from grpc_callbacks.rate_limited_log import RateLimitedLogger

WITHIN_S = 30.0
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Caller = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(autouse=True)
def _log_that_has_written_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's log writes a line of a kind once in a period."""
    fresh = RateLimitedLogger(structlog.get_logger())
    monkeypatch.setattr(acceptor_module, "log", fresh)


class Site:
    """An acceptor, and a server in gRPC's place that sends back what it receives."""

    def __init__(self, acceptor: ConnectionAcceptor, port: int) -> None:
        self.acceptor = acceptor
        self.port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def call(self, first: bytes) -> Caller:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        writer.write(first)
        return reader, writer

    async def until_received(self, first: bytes) -> None:
        """Wait until a caller that is still connected has sent these bytes alone."""
        while first not in [held._first for held in self.acceptor._held.values()]:
            await asyncio.sleep(0)

    async def close(self) -> None:
        self.acceptor.stop_listening()
        self.acceptor.close()
        for writer in self._writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def site(
    folder: Path, *, most: int = 10, serve: Serve | None = echo
) -> AsyncIterator[Site]:
    inner = str(folder / "inner")
    server = None
    if serve is not None:
        server = await asyncio.start_unix_server(serve, inner)
    acceptor = ConnectionAcceptor(inner, "grid.example:3000", tls=False, most=most)
    _, port = await acceptor.listen("127.0.0.1:0")
    made = Site(acceptor, port)
    try:
        yield made
    finally:
        await made.close()
        if server is not None:
            server.close()
        own = {asyncio.current_task()}
        while others := asyncio.all_tasks() - own:  # those of the connections
            await asyncio.wait(others)


def run(coroutine: Coroutine[None, None, None]) -> list[str]:
    """Run it; returns the events of the log."""
    return [line["event"] for line in logged(coroutine)]


def logged(
    coroutine: Coroutine[None, None, None],
) -> list[MutableMapping[str, Any]]:
    """Run it; returns the lines of the log."""

    async def bounded() -> None:
        async with asyncio.timeout(WITHIN_S):
            await coroutine

    with capture_logs() as lines:
        asyncio.run(bounded())
    return lines


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def test_listen__host_is_a_name__tells_the_address_that_the_name_stands_for() -> None:
    async def listened() -> tuple[str, int]:
        acceptor = ConnectionAcceptor("unused", "grid.example:3000", tls=False, most=10)
        where = await acceptor.listen("localhost:0")
        acceptor.stop_listening()
        return where

    ip, port = asyncio.run(listened())
    assert ip_address(ip).is_loopback
    assert port > 0


def test_front__caller_begins_as_grpc_does__its_bytes_reach_grpc_and_come_back(
    tmp_path: Path,
) -> None:
    much = bytes(8_000_000)  # more than all buffers hold, so both ends pause

    async def talks() -> None:
        async with site(tmp_path) as at:
            reader, writer = await at.call(PREFACE[:5])
            writer.write(PREFACE[5:])
            assert await reader.readexactly(len(PREFACE)) == PREFACE
            (peer,) = at.acceptor.callers
            assert at.acceptor.connection(peer) is not None
            writer.write(much)
            assert await reader.readexactly(len(much)) == much
            writer.close()
            await writer.wait_closed()
            while at.acceptor.callers:
                await asyncio.sleep(0)
            assert at.acceptor.connection(peer) is None

    assert run(talks()) == []


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n", b"\0"])
def test_front__caller_begins_otherwise__is_closed_and_never_reaches_grpc(
    tmp_path: Path, first: bytes
) -> None:
    async def talks() -> None:
        async with site(tmp_path) as at:
            reader, _ = await at.call(first)
            assert await is_closed(reader)
            assert not at.acceptor.callers

    assert run(talks()) == ["connection_without_grpc"]


def hello(host: str | None) -> bytes:
    """The ClientHello of a caller."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(received, sent, server_hostname=host).do_handshake()
    return sent.read()


@pytest.mark.parametrize("host", ["login.example", None])
def test_name_asked_for__client_hello__is_the_host_that_it_names(
    host: str | None,
) -> None:
    assert name_asked_for(hello(host)) == host


@pytest.mark.parametrize("cut", [3, 5, 100])
def test_front__tls_at_a_plain_port__is_refused_once_the_hello_is_complete(
    tmp_path: Path, cut: int
) -> None:
    whole = hello("login.example")

    async def talks() -> None:
        async with site(tmp_path) as at:
            for _ in range(2):  # the second one is refused without a line
                reader, writer = await at.call(whole[:cut])
                await at.until_received(whole[:cut])
                writer.write(whole[cut:])
                assert await is_closed(reader)

    (line,) = logged(talks())
    assert (line["event"], line["asked_for"], line["public_address"]) == (
        "tls_at_a_plain_port",
        "login.example",
        "grid.example:3000",
    )


def test_front__grpc_is_away__caller_is_closed_and_the_log_says_so(
    tmp_path: Path,
) -> None:
    async def talks() -> None:
        async with site(tmp_path, serve=None) as at:
            reader, _ = await at.call(PREFACE)
            assert await is_closed(reader)

    assert run(talks()) == ["connection_not_passed_on"]


def test_give_up__caller_of_that_name__is_closed_and_no_other(tmp_path: Path) -> None:
    async def talks() -> None:
        async with site(tmp_path) as at:
            first, _ = await at.call(PREFACE)
            await first.readexactly(len(PREFACE))
            (name,) = at.acceptor.callers
            second, writer = await at.call(PREFACE)
            await second.readexactly(len(PREFACE))
            at.acceptor.give_up("unix-abstract:unknown")
            at.acceptor.give_up(name)
            assert await is_closed(first)
            writer.write(b"still there")
            assert await second.readexactly(11) == b"still there"

    assert run(talks()) == ["connection_given_up"]


def test_front__too_many_callers__one_of_them_is_closed(tmp_path: Path) -> None:
    async def talks() -> None:
        async with site(tmp_path, most=1) as at:
            first, _ = await at.call(PREFACE)
            await first.readexactly(len(PREFACE))
            second, _ = await at.call(PREFACE)
            assert await second.readexactly(len(PREFACE)) == PREFACE
            assert await is_closed(first)

    assert run(talks()) == ["connection_given_up"]


def test_close__callers_are_connected__all_are_closed(tmp_path: Path) -> None:
    async def talks() -> None:
        async with site(tmp_path) as at:
            waiting, _ = await at.call(PREFACE[:3])
            served, _ = await at.call(PREFACE)
            await served.readexactly(len(PREFACE))
            at.acceptor.close()
            assert await is_closed(waiting)
            assert await is_closed(served)

    assert run(talks()) == []


@pytest.mark.parametrize("has_ipv6", sorted({False, socket.has_dualstack_ipv6()}))
def test_listening_sockets__no_host__all_addresses_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, has_ipv6: bool
) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: has_ipv6)
    (listening,) = listening_sockets(":0")
    with listening:
        port = listening.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), WITHIN_S).close()


def test_allow_open_files__of_this_process__the_limit_is_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert 1 <= allow_open_files() <= MAX_CONNECTIONS
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
