"""Calls of the gRPC process that go wrong: each ends by itself, and keeps no other one out."""

import asyncio
from typing import Any, cast

import grpc
import pytest
from structlog.testing import CapturingLogger

from grpc_callbacks import server
from grpc_callbacks.callback_writer import CallbackWriter
from grpc_callbacks.callers import Callers
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

    async def read(self) -> bytes:
        await self.message.wait()
        return b""

    async def abort(self, code: grpc.StatusCode, _: str) -> None:
        self.code = code
        raise Aborted


async def run(services: Services, call: Call, error: Exception | None = None) -> grpc.StatusCode:
    async def answer(_: bytes, __: Called) -> Any:
        if error is not None:
            raise error
        return messages.SetJobStatusResponse()

    handler = cast(Any, services._handler("/a.B/C", answer))
    try:
        await handler.stream_unary(None, call)
    except Aborted:
        assert call.code is not None
        return call.code
    return grpc.StatusCode.OK


def some_services() -> Services:
    return Services(cast(CallbackWriter, None), cast(PollNotifier, None), Callers(None), "")


def test_call__unexpected_error__is_internal_and_one_log_line_for_many_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = CapturingLogger()
    monkeypatch.setattr(server, "log", RateLimitedLogger(lines))

    async def two() -> list[grpc.StatusCode]:
        services, calls = some_services(), [Call(), Call()]
        for call in calls:
            call.message.set()
        return [await run(services, call, RuntimeError("unforeseen")) for call in calls]

    assert asyncio.run(two()) == [grpc.StatusCode.INTERNAL] * 2
    assert [line.args for line in lines.calls] == [("call_failed",)]


class Connections:
    """Which connections the services part with."""

    def __init__(self) -> None:
        self.given_up = list[str]()

    def give_up(self, peer: str) -> None:
        self.given_up.append(peer)


def test_calls_without_message__too_many__the_connection_with_most_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MOST_WITHOUT_MESSAGE", 3)
    connections = Connections()

    async def four() -> list[grpc.StatusCode]:
        services = some_services()
        services.front = cast(Any, connections)
        calls = [Call(OURSELVES if good else "unix-abstract:liar") for good in (True, False, False, True)]
        tasks = [asyncio.create_task(run(services, call)) for call in calls]
        await asyncio.sleep(0)  # each begins
        for call in calls[::3]:
            call.message.set()
        answers = list(await asyncio.gather(*tasks[::3]))
        for task in tasks[1:3]:
            task.cancel()
        return answers

    assert asyncio.run(four()) == [grpc.StatusCode.OK] * 2
    assert connections.given_up == ["unix-abstract:liar"]
