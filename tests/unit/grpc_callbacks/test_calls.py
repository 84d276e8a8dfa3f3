"""Calls of the gRPC process that go wrong: each ends by itself, and keeps no other one
out.
"""

import asyncio
from ipaddress import ip_address
from typing import Any, cast

import grpc
import pytest
from structlog.testing import CapturingLogger

from grpc_callbacks import connections, server
from grpc_callbacks.callback_writer import CallbackWriter
from grpc_callbacks.callers import Callers
from grpc_callbacks.connections import CallerConnection
from grpc_callbacks.notifier import PollNotifier
from grpc_callbacks.rate_limited_log import RateLimitedLogger
from grpc_callbacks.server import OURSELVES, Called, Services
from protos.supervisor.v1alpha1 import supervisor_pb2 as messages


class Aborted(BaseException):
    """What gRPC's context raises."""


class Call:
    """A call, as far as a handler sees it; its message comes when it is told to."""

    def __init__(self, peer: str = OURSELVES) -> None:
        self.message = asyncio.Event()
        self.code: grpc.StatusCode | None = None
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    async def read(self) -> bytes:
        await self.message.wait()
        return b""

    async def abort(self, code: grpc.StatusCode, _: str) -> None:
        self.code = code
        raise Aborted


async def run(
    services: Services,
    call: Call,
    error: Exception | None = None,
    answer: server.Answer | None = None,
) -> grpc.StatusCode:
    async def at_once(_: bytes, __: Called) -> Any:
        if error is not None:
            raise error
        return messages.SetJobStatusResponse()

    handler = cast(Any, services._handler("/a.B/C", answer or at_once))
    try:
        await handler.stream_unary(None, call)
    except Aborted:
        assert call.code is not None
        return call.code
    return grpc.StatusCode.OK


def some_services() -> Services:
    services = Services(
        cast(CallbackWriter, None), cast(PollNotifier, None), Callers(None), ""
    )
    services.acceptor = cast(Any, Held())
    return services


def test_call__unexpected_error__is_internal_and_one_log_line_for_many_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = CapturingLogger()
    monkeypatch.setattr(server, "log", RateLimitedLogger(lines))

    async def two() -> list[grpc.StatusCode]:
        services, calls = some_services(), [Call(), Call()]
        for call in calls:
            call.message.set()
        return [await run(services, call, RuntimeError("unexpected")) for call in calls]

    assert asyncio.run(two()) == [grpc.StatusCode.INTERNAL] * 2
    assert [line.args for line in lines.calls] == [("call_failed",)]


class Held:
    """The acceptor of two peers' connections, with the real count of their calls."""

    def __init__(self, *peers: str) -> None:
        self.connections = connections.Connections()
        self._of = {peer: CallerConnection(ip_address(peer), 1) for peer in peers}
        for one in self._of.values():
            self.connections.admit(one)

    def connection(self, peer: str) -> CallerConnection | None:
        return self._of.get(peer)


def test_calls_of_one_peer__too_many_under_way__are_refused_and_other_peers_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "CALLS_OF_A_PEER", 2)
    crowd, other = "10.0.0.1", "10.0.0.2"

    async def calls() -> list[grpc.StatusCode]:
        services, under_way, may_end = (
            some_services(),
            asyncio.Semaphore(0),
            asyncio.Event(),
        )
        services.acceptor = cast(Any, Held(crowd, other))

        async def slow(_: bytes, __: Called) -> Any:
            under_way.release()
            await may_end.wait()
            return messages.SetJobStatusResponse()

        first = [
            asyncio.create_task(run(services, ready(crowd), answer=slow))
            for _ in range(2)
        ]
        for _ in first:
            await under_way.acquire()
        codes = [await run(services, ready(crowd)), await run(services, ready(other))]
        may_end.set()
        return [
            *codes,
            *await asyncio.gather(*first),
            await run(services, ready(crowd)),
        ]

    ok = grpc.StatusCode.OK
    assert asyncio.run(calls()) == [grpc.StatusCode.RESOURCE_EXHAUSTED, ok, ok, ok, ok]


def ready(peer: str) -> Call:
    """A call whose message is there."""
    call = Call(peer)
    call.message.set()
    return call


class Connections:
    """Which connections the services part with."""

    def __init__(self) -> None:
        self.given_up = list[str]()

    def give_up(self, peer: str) -> None:
        self.given_up.append(peer)


def test_calls_without_message__too_many__the_connection_with_most_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_CALLS_WITHOUT_MESSAGE", 3)
    acceptor = Connections()

    async def four() -> list[grpc.StatusCode]:
        services = some_services()
        services.acceptor = cast(Any, acceptor)
        calls = [
            Call(OURSELVES if good else "unix-abstract:liar")
            for good in (True, False, False, True)
        ]
        tasks = [asyncio.create_task(run(services, call)) for call in calls]
        await asyncio.sleep(0)  # each begins
        for call in calls[::3]:
            call.message.set()
        answers = list(await asyncio.gather(*tasks[::3]))
        for task in tasks[1:3]:
            task.cancel()
        return answers

    assert asyncio.run(four()) == [grpc.StatusCode.OK] * 2
    assert acceptor.given_up == ["unix-abstract:liar"]
