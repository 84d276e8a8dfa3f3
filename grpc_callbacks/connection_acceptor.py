"""Accepts and limits connections to the callbacks' port, and passes on those that begin
as gRPC does.

gRPC itself does not limit a peer's connections, keeps connections that send nothing,
and cannot report a TLS handshake at a plain port. gRPC listens on a Unix socket that
only this process reaches. The acceptor copies the bytes in both directions unchanged,
TLS included.
"""

import asyncio
import errno
import resource
import secrets
import socket
import ssl
from contextlib import suppress
from enum import Enum
from itertools import count
from typing import Any, cast

import structlog

from grpc_callbacks.connections import (
    MAX_CONNECTIONS,
    CallerConnection,
    Connections,
    address_of,
)
from grpc_callbacks.rate_limited_log import RateLimitedLogger

log = RateLimitedLogger(structlog.get_logger())

FIRST_BYTES_S = 10.0  # within this time a connection must begin as gRPC does
LISTEN_BACKLOG = 1024
DEAD_AFTER_S = 60  # without an answer from the other side's kernel
FILES_OF_A_CONNECTION = 3  # the caller's, and both ends of the Unix socket
OTHER_FILES = 128  # database, broker, logs, gRPC's own
MAX_HELLO_BYTES = 16_384 + 5
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TLS_HANDSHAKE = b"\x16\x03"


class Beginning(Enum):
    """What the first bytes of a connection are."""

    SHORT = "too few bytes to tell"
    GOOD = "what gRPC begins with"
    TLS = "a TLS handshake at a plain port"
    WRONG = "nothing that gRPC begins with"


def beginning(first: bytes, *, tls: bool) -> Beginning:
    """Classify the first bytes of a connection; `tls`: whether the port uses TLS."""
    wanted = TLS_HANDSHAKE if tls else PREFACE
    if first.startswith(wanted):
        return Beginning.GOOD
    if wanted.startswith(first):
        return Beginning.SHORT
    if first[0] == TLS_HANDSHAKE[0] and not tls:
        return Beginning.TLS
    return Beginning.WRONG


def name_asked_for(hello: bytes) -> str | None:
    """Return the host that a TLS client names in its ClientHello (SNI); None when it
    names none.
    """
    names = list[str | None]()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _, name, __: names.append(name)
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    received.write(hello)
    # the handshake fails after the ClientHello, because there is no certificate
    with suppress(ssl.SSLError):
        context.wrap_bio(received, sent, server_side=True).do_handshake()
    return next(iter(names), None)


def allow_open_files() -> int:
    """Raise the limit of open files to the hard limit; returns how many connections
    that allows.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, (most - OTHER_FILES) // FILES_OF_A_CONNECTION))


class ConnectionAcceptor:
    """Listens for callers, and connects each caller with gRPC at the Unix socket
    `inner`.
    """

    def __init__(
        self, inner: str, public_address: str, *, tls: bool, most: int
    ) -> None:
        self.inner = inner
        self.public_address = public_address
        self.tls = tls
        self.connections = Connections(most)
        # by the name under which gRPC knows the connection
        self.callers: dict[str, _Caller] = {}
        self._held: dict[CallerConnection, _Caller] = {}
        self._servers: list[asyncio.Server] = []

    async def listen(self, address: str) -> tuple[str, int]:
        """Accept callers at host:port; returns the first IP address, and the port.
        Raises OSError.
        """
        sockets = listening_sockets(address)
        loop = asyncio.get_running_loop()
        for listening in sockets:
            self._servers.append(
                await loop.create_server(
                    lambda: _Caller(self), sock=listening, backlog=LISTEN_BACKLOG
                )
            )
        ip, port, *flow_and_scope = sockets[0].getsockname()
        # a link-local address means an interface by its scope
        scope = filter(None, flow_and_scope[1:])
        return "%".join([ip, *map(str, scope)]), port

    def connection(self, inner_peer: str) -> CallerConnection | None:
        """Return the caller's connection by gRPC's name for the peer; None when the
        connection has ended.
        """
        caller = self.callers.get(inner_peer)
        return None if caller is None else caller.connection

    def give_up(self, inner_peer: str) -> None:
        """Close a caller's connection, by gRPC's name for the peer."""
        caller = self.callers.get(inner_peer)
        if caller is not None:
            log.once("connection_given_up", peer=caller.connection.peer)
            caller.give_up()

    def stop_listening(self) -> None:
        """Accept no more callers; the connections that are open stay open."""
        for server in self._servers:
            server.close()

    def close(self) -> None:
        """Close all connections."""
        for caller in list(self._held.values()):
            caller.give_up()

    def hold(self, caller: "_Caller", connection: CallerConnection) -> None:
        """Add a caller; if there are too many, close the connection of another
        caller.
        """
        given_up = self.connections.admit(connection)
        self._held[connection] = caller
        if given_up is not None:
            log.once("connection_given_up", peer=given_up.peer)
            self._held[given_up].give_up()

    def discard(self, connection: CallerConnection) -> None:
        """Remove a connection that has ended."""
        self.connections.remove(connection)
        self._held.pop(connection, None)


def listening_sockets(address: str) -> list[socket.socket]:
    """Open sockets that listen at host:port; without a host, at all addresses of the
    machine. Raises OSError; a retry helps once no other process has the port.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if host:
        return _listening_at(host, int(port))
    if socket.has_dualstack_ipv6():
        dual = socket.create_server(
            ("::", int(port)),
            family=socket.AF_INET6,
            backlog=LISTEN_BACKLOG,
            dualstack_ipv6=True,
        )
        return [dual]
    return [socket.create_server(("", int(port)), backlog=LISTEN_BACKLOG)]


def _listening_at(host: str, port: int) -> list[socket.socket]:
    """Listen at those addresses of the host that this machine has: localhost can mean
    ::1 although IPv6 is off.
    """
    found = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets, missing = list[socket.socket](), OSError(f"{host} has no address")
    # /etc/hosts may repeat one
    for family, where in dict.fromkeys((family, where) for family, *_, where in found):
        try:
            sockets.append(_create_server(family, where))
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                _close(sockets)
                raise
            missing = error
    if not sockets:
        raise missing
    return sockets


def _create_server(
    family: socket.AddressFamily, where: tuple[Any, ...]
) -> socket.socket:
    return socket.create_server(cast(Any, where), family=family, backlog=LISTEN_BACKLOG)


def _close(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()


_TOKEN = secrets.token_hex(16)  # so that no other process uses our names
_NAMES = count()


class _Piped(asyncio.Protocol):
    """One end of a pair. It writes the bytes that it receives to the other end, and
    pauses while that end is full.
    """

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.other: _Piped | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  asyncio's own signature
        if self.other is not None:
            self.other.transport.close()


class _Caller(_Piped):
    """A caller's connection. It reaches gRPC only after its first bytes are those of
    gRPC.
    """

    connection: CallerConnection

    def __init__(self, acceptor: ConnectionAcceptor) -> None:
        super().__init__()
        self._acceptor = acceptor
        self._first = b""
        self._name = ""
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        _detect_dead_peer(transport.get_extra_info("socket"))
        host, port = transport.get_extra_info("peername")[:2]
        self.connection = CallerConnection(address_of(host), port)
        self._acceptor.hold(self, self.connection)
        self._deadline = asyncio.get_running_loop().call_later(
            FIRST_BYTES_S, self.give_up
        )

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)
            return
        self._first += data
        found = beginning(self._first, tls=self._acceptor.tls)
        if found is Beginning.GOOD and self._connecting is None:
            self._deadline.cancel()
            self.transport.pause_reading()
            self._connecting = asyncio.get_running_loop().create_task(self._pass_on())
        elif found is Beginning.TLS:
            self._refuse_tls()
        elif found is Beginning.WRONG:
            log.once("connection_without_grpc", peer=self.connection.peer)
            self.give_up()

    def connection_lost(self, error: Exception | None) -> None:
        self._deadline.cancel()
        if self._connecting is not None and self.other is None:
            self._connecting.cancel()
        self._acceptor.callers.pop(self._name, None)
        self._acceptor.discard(self.connection)
        super().connection_lost(error)

    def give_up(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    async def _pass_on(self) -> None:
        """Connect with gRPC, under a name that gRPC gives the services as the peer."""
        own_name = f"{_TOKEN}-{next(_NAMES)}"
        self._name = f"unix-abstract:{own_name}"
        self._acceptor.callers[self._name] = self
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            inner.bind(f"\0{own_name}")
            await asyncio.get_running_loop().sock_connect(inner, self._acceptor.inner)
            _, other = await asyncio.get_running_loop().create_connection(
                _Piped, sock=inner
            )
        except OSError as error:
            inner.close()
            log.warning(
                "connection_not_passed_on", peer=self.connection.peer, error=str(error)
            )
            self.give_up()
            return
        except asyncio.CancelledError:
            inner.close()
            raise
        other.other, self.other = self, other
        other.transport.write(self._first)
        self._first = b""
        if self.transport.is_closing():
            other.transport.close()
        else:
            self.transport.resume_reading()

    def _refuse_tls(self) -> None:
        """Close the connection, and log why: the upstream plugins always use TLS, and
        the operator needs the reason.

        Waits until the ClientHello is complete, because the log names the host in it.
        """
        hello_bytes = MAX_HELLO_BYTES
        if len(self._first) >= 5:
            hello_bytes = min(5 + int.from_bytes(self._first[3:5]), MAX_HELLO_BYTES)
        if len(self._first) < hello_bytes:
            return
        # reading the name costs more than the refusal
        if log.is_first("tls_at_a_plain_port"):
            log.warning(
                "tls_at_a_plain_port",
                peer=self.connection.peer,
                asked_for=name_asked_for(self._first),
                public_address=self._acceptor.public_address,
                help="TLS_ENABLE is false, but a caller uses TLS, as the upstream plugins do: set it, TLS_CERT and TLS_KEY",
            )
        self.give_up()


def _detect_dead_peer(connection: socket.socket) -> None:
    """Let the kernel end a connection whose machine is down and has not closed it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, DEAD_AFTER_S // 2),
        (socket.TCP_KEEPINTVL, DEAD_AFTER_S // 6),
        (socket.TCP_USER_TIMEOUT, DEAD_AFTER_S * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
