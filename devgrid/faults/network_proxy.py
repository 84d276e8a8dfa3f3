"""A network that fails on demand: a TCP proxy that cuts, delays and loses bytes at
chosen places.

with Proxy.start("127.0.0.1:22") as proxy:      # or the path of a Unix socket
    ... connect to proxy.address ...
    proxy.inject(Direction.TO_SERVER, 1000, Fault.CUT)        # once, when 1,000 more bytes have gone to the server
    proxy.fault(Fault.HANG)                     # now: no byte passes, and no connection ends
    proxy.fault(None)                           # end of the fault; delayed bytes go on
"""

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from devgrid.machine import deadline
from devgrid.tls import Certificates

CHUNK = 65_536
PATIENCE_S = 10.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, for 0 s


class Direction(StrEnum):
    """The direction of bytes."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


class Fault(StrEnum):
    """What goes wrong."""

    CUT = "cut"  # connections are reset; new ones pass
    END = "end"  # connections are ended in good order, too early; new ones pass
    REFUSE = "refuse"  # as cut, and new ones are reset as well
    # connections are accepted, and no byte passes in either direction; bytes are kept
    # for later
    HANG = "hang"
    # no byte of present connections passes, nor their end; new ones pass
    DROP = "drop"
    GARBLE_TO_CLIENT = "garble what comes back"  # every bit of it is flipped
    # accepted and thrown away; the client takes it for delivered
    LOSE_TO_SERVER = "lose what goes there"
    LOSE_TO_CLIENT = "lose what comes back"


@dataclass(frozen=True, slots=True)
class _PlannedFault:
    direction: Direction
    passed: int
    fault: Fault
    on_arrival: bool


@dataclass(frozen=True, slots=True)
class _PlannedInAnswer:
    sent: int
    at: int
    fault: Fault


class Proxy:
    """One address in front of one server. Threads may share it."""

    def __init__(self, target: str, certificates: Certificates | None = None) -> None:
        self.target = target
        self._certificates = certificates
        self.address = ""
        self.passed = dict.fromkeys(Direction, 0)  # bytes so far, over all connections
        self.connections = 0  # so far
        self.delay_s = 0.0  # of every piece, in each direction
        self._fault: Fault | None = None
        self._planned: _PlannedFault | None = None
        self._planned_in_answer: _PlannedInAnswer | None = None
        self._happened = threading.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._dropped: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"proxy of {target}", daemon=True
        )

    @classmethod
    def start(
        cls,
        target: str,
        port: int = 0,
        host: str = "127.0.0.1",
        certificates: Certificates | None = None,
    ) -> Self:
        """Start a proxy of `target`, which is `host:port` or the path of a Unix socket.
        It listens on `port` of `host`, or on a free port. With certificates it speaks
        TLS with its clients.
        """
        proxy = cls(target, certificates)
        proxy._thread.start()
        proxy._wait(proxy._listen(host, port))
        return proxy

    def stop(self) -> None:
        """Reset all connections, and stop listening."""
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def fault(self, fault: Fault | None) -> None:
        """Begin a fault now; None ends the present one. A planned fault is dropped."""
        self._call(lambda: self._apply(fault))

    def inject(
        self,
        direction: Direction,
        more_bytes: int,
        fault: Fault,
        *,
        on_arrival: bool = False,
    ) -> None:
        """Let exactly this many more bytes pass in a direction, over all connections,
        and then begin the fault: at once or when more of them arrive.
        """

        def arm() -> None:
            self._happened.clear()
            self._planned_in_answer = None
            self._planned = _PlannedFault(
                direction, self.passed[direction] + more_bytes, fault, on_arrival
            )
            self._apply_if_due(Direction(direction), b"")

        self._call(arm)

    def inject_in_answer(self, after_sent: int, at: int, fault: Fault) -> None:
        """Begin the fault when `at` bytes have come back since more than `after_sent`
        further bytes went to the server. So it lies in the answer to a request that
        follows others, however long the answers to those are.
        """

        def arm() -> None:
            self._happened.clear()
            self._planned = None
            self._planned_in_answer = _PlannedInAnswer(
                self.passed[Direction.TO_SERVER] + after_sent, at, fault
            )

        self._call(arm)

    def wait_for_fault(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the planned fault has begun. Raises TimeoutError."""
        if not self._happened.wait(deadline(timeout_s)):
            raise TimeoutError(
                f"waited {timeout_s:g} s for {self._planned}; passed {self.passed}"
            )

    # --- in the proxy's own thread ----------------------------------------------------

    async def _listen(self, host: str, port: int) -> None:
        self._flows.set()
        self._server = await asyncio.start_server(
            self._serve, host, port, ssl=self._tls()
        )
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"

    def _tls(self) -> ssl.SSLContext | None:
        if self._certificates is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._certificates.cert, self._certificates.key)
        return context

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(
        self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served by a task")
        self._tasks.add(task)
        self._open.add(to_client)
        self.connections += 1
        try:
            if self._fault is not Fault.REFUSE:
                await self._connect(client, to_client)
        except (OSError, asyncio.CancelledError):
            pass  # the client's connection is reset below
        finally:
            _reset(to_client)
            self._discard(to_client)
            self._tasks.discard(task)

    async def _connect(
        self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        await self._flows.wait()
        server, to_server = await self._reach()
        self._open.add(to_server)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(Direction.TO_SERVER, client, to_server))
                both.create_task(self._pass(Direction.TO_CLIENT, server, to_client))
        except ExceptionGroup as error:
            raise ConnectionResetError("one end went away") from error
        finally:
            _reset(to_server)
            self._discard(to_server)

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, colon, port = self.target.rpartition(":")
        if colon and port.isdigit():
            return await asyncio.open_connection(host, int(port))
        return await asyncio.open_unix_connection(self.target)

    async def _pass(
        self,
        direction: Direction,
        source: asyncio.StreamReader,
        drain: asyncio.StreamWriter,
    ) -> None:
        while data := await source.read(CHUNK):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            while data:
                await self._flows.wait()
                self._apply_if_due(direction, data)
                piece, data = self._allowed(direction, data)
                if not self._lost(direction) and drain not in self._dropped:
                    drain.write(self._garbled(direction, piece))
                    await drain.drain()
                self.passed[direction] += len(piece)
                self._plan_if_sent()
                self._apply_if_due(direction, b"")
        if drain.can_write_eof() and drain not in self._dropped:
            drain.write_eof()

    def _allowed(self, direction: Direction, data: bytes) -> tuple[bytes, bytes]:
        planned = self._planned
        if planned is None or planned.direction is not direction:
            return data, b""
        room = max(planned.passed - self.passed[direction], 0)
        return data[:room], data[room:]

    def _garbled(self, direction: Direction, piece: bytes) -> bytes:
        garbles = (
            direction is Direction.TO_CLIENT and self._fault is Fault.GARBLE_TO_CLIENT
        )
        return bytes(byte ^ 0xFF for byte in piece) if garbles else piece

    def _lost(self, direction: Direction) -> bool:
        return self._fault is (
            Fault.LOSE_TO_SERVER
            if direction is Direction.TO_SERVER
            else Fault.LOSE_TO_CLIENT
        )

    def _plan_if_sent(self) -> None:
        later = self._planned_in_answer
        if later is not None and self.passed[Direction.TO_SERVER] > later.sent:
            self._planned_in_answer = None
            back = Direction.TO_CLIENT
            self._planned = _PlannedFault(
                back, self.passed[back] + later.at, later.fault, on_arrival=False
            )

    def _apply_if_due(self, direction: Direction, arrived: bytes) -> None:
        planned = self._planned
        if planned is None or self.passed[planned.direction] < planned.passed:
            return
        if not planned.on_arrival or (direction is planned.direction and arrived):
            self._apply(planned.fault)
            self._happened.set()

    def _apply(self, fault: Fault | None) -> None:
        self._planned, self._planned_in_answer, self._fault = None, None, fault
        if fault is Fault.HANG:
            self._flows.clear()
        else:
            self._flows.set()
        if fault in (Fault.CUT, Fault.REFUSE):
            self._cut()
        elif fault is Fault.END:
            self._end()
        elif fault is Fault.DROP:
            self._dropped |= self._open

    def _cut(self) -> None:
        for writer in tuple(self._open):
            _reset(writer)

    def _discard(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        self._dropped.discard(writer)

    def _end(self) -> None:
        for writer in tuple(self._open):
            writer.close()

    # --- from other threads -----------------------------------------------------------

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def _call(self, change: Callable[[], None]) -> None:
        async def apply() -> None:
            change()

        self._wait(apply())


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as when a machine fails: bytes under way are lost, and the peer
    gets a reset.
    """
    transport_socket = writer.get_extra_info("socket")
    if transport_socket is not None and not writer.transport.is_closing():
        with contextlib.suppress(OSError):
            transport_socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE
            )
    writer.transport.abort()
