"""A false WebSocket node: endless or huge messages, blocks of another chain,
redirects.
"""

import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import pytest
import structlog
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from devgrid.chain.deployment import start_chain
from devgrid.chain.model import ChainNode, ChainPrices
from devgrid.processes import wait_until
from devgrid.state_folder import private_processes
from supervisor_tasks.chain.subscription import (
    MAX_BYTES,
    MAX_MESSAGES_A_SECOND,
    Subscription,
)
from supervisor_tasks.indexer.new_blocks import PAUSE_S, NewBlocks
from supervisor_tasks.jobs.claim import look_at_queues
from tests.support.wallet_harness import ChainHarness, databases, empty, scheduled_jobs

CHAIN_ID = 7
KEY = "k3y-0123456789abcdef"
PATIENCE_S = 30.0
MAX_MORE_MB = 60.0  # of memory, for anything that is sent
A_SECOND = 10  # messages of a task at most
Script = Callable[[ServerConnection], None]


class ListenerCalls:
    """The calls that a listener gets."""

    def __init__(self) -> None:
        self.heads: list[int] = []
        self.logs = self.subscriptions = 0
        self.cuts: list[tuple[str, bool]] = []

    def subscribed(self) -> None:
        self.subscriptions += 1

    def head(self, number: int) -> None:
        self.heads.append(number)

    def log(self, entry: dict[str, Any]) -> None:
        self.logs += len(entry) > 0

    def disconnected(self, why: str, *, foreign: bool) -> None:
        self.cuts.append((why, foreign))


def head(number: object) -> str:
    params = {"subscription": "newHeads", "result": {"number": number}}
    return json.dumps(
        {"jsonrpc": "2.0", "method": "eth_subscription", "params": params}
    )


@contextmanager
def node(script: Script, chain_id: int = CHAIN_ID) -> Iterator[str]:
    """A node that accepts every subscription, and then behaves as the test chooses."""

    def handle(connection: ServerConnection) -> None:
        try:
            for _ in range(3):
                asked = json.loads(connection.recv())
                answer = (
                    hex(chain_id)
                    if asked["method"] == "eth_chainId"
                    else asked["params"][0]
                )
                connection.send(
                    json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer})
                )
            script(connection)
        except ConnectionClosed:
            return

    with serve(handle, "127.0.0.1", 0, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}/{KEY}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def subscribed(url: str) -> Iterator[ListenerCalls]:
    calls = ListenerCalls()
    subscription = Subscription(
        url, CHAIN_ID, lambda: (["0x" + "1" * 40], ["0x" + "2" * 64]), calls
    )
    subscription.start()
    try:
        yield calls
    finally:
        subscription.close()


def until(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, what, PATIENCE_S, 0.02)


def forever(*messages: str) -> Script:
    def script(connection: ServerConnection) -> None:
        while True:
            for message in messages:
                connection.send(message)

    return script


def silent(connection: ServerConnection) -> None:
    connection.recv()


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_subscription__blocks_without_end__reads_a_limited_rate_and_keeps_none() -> (
    None
):
    with node(forever(head("0x1"))) as url, subscribed(url) as calls:
        until(lambda: len(calls.heads) > 10, "the first heads")
        before_mb, began, began_s = peak_mb(), len(calls.heads), time.monotonic()
        until(lambda: time.monotonic() - began_s > 3.0, "three seconds")
        read = len(calls.heads) - began
        # on a busy machine more than the three seconds
        passed_s = time.monotonic() - began_s
        assert read <= (passed_s + 2) * MAX_MESSAGES_A_SECOND
        assert peak_mb() - before_mb < MAX_MORE_MB


def test_subscription__answers_to_what_was_never_asked__are_kept_nowhere() -> None:
    """web3 would keep 500 of them, of any size."""
    large = json.dumps(
        {"jsonrpc": "2.0", "id": 10**6, "result": [{}] * (MAX_BYTES // 5)}
    )
    many = [large.replace("1000000", str(10**6 + number)) for number in range(600)]

    def script(connection: ServerConnection) -> None:
        for message in many:
            connection.send(message)
        connection.send(head("0x2"))
        silent(connection)

    with node(script) as url, subscribed(url) as calls:
        until(lambda: calls.subscriptions == 1, "the subscription")
        before_mb = peak_mb()
        until(lambda: calls.heads == [2], "what comes behind them")
        assert peak_mb() - before_mb < MAX_MORE_MB


@pytest.mark.parametrize(
    "message",
    [
        head("0x1") + " " * MAX_BYTES,
        "[" * 100_000,
        "no JSON",
        b"\xff\xfe\xfd",
    ],
)
def test_subscription__huge_or_senseless_message__ends_the_connection_and_no_more(
    message: str | bytes,
) -> None:
    def script(connection: ServerConnection) -> None:
        connection.send(message)
        silent(connection)

    with node(script) as url, subscribed(url) as calls:
        until(
            lambda: len(calls.cuts) > 1,
            "the connection to be cut, made again and cut again",
        )
        assert calls.heads == []


@pytest.mark.parametrize(
    "number", ["0x", "1", 1, None, "0x" + "f" * 64, {"a": 1}, "0xzz"]
)
def test_subscription__block_without_a_valid_number__is_not_told(
    number: object,
) -> None:
    def script(connection: ServerConnection) -> None:
        connection.send(head(number))
        connection.send(head("0x5"))
        silent(connection)

    with node(script) as url, subscribed(url) as calls:
        until(lambda: calls.heads == [5], "the block behind it")
        assert calls.cuts == []


def test_subscription__another_chain__tells_nothing_but_that() -> None:
    with node(forever(head("0x1")), chain_id=8) as url, subscribed(url) as calls:
        until(lambda: bool(calls.cuts), "the connection to be given up")
        ((why, foreign), *_) = calls.cuts
        assert foreign
        assert "serves chain 8, the settings want 7" in why
        assert (calls.heads, calls.subscriptions) == ([], 0)


def test_subscription__redirect__is_not_followed_and_the_urls_key_is_not_told() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as inside,
        socket.create_server(("127.0.0.1", 0)) as outside,
    ):
        inside.settimeout(0.5)
        there = f"http://127.0.0.1:{inside.getsockname()[1]}/admin"
        answer = f"HTTP/1.1 302 Found\r\nLocation: {there}\r\nContent-Length: 0\r\n\r\n".encode()

        def lead_elsewhere() -> None:
            while True:
                try:
                    connection, _ = outside.accept()
                except OSError:
                    return
                connection.recv(65536)
                connection.sendall(answer)
                connection.close()

        threading.Thread(target=lead_elsewhere, daemon=True).start()
        url = f"ws://127.0.0.1:{outside.getsockname()[1]}/{KEY}"
        with structlog.testing.capture_logs() as entries, subscribed(url) as calls:
            until(lambda: bool(calls.cuts), "the connection to be refused")
            with pytest.raises(TimeoutError):
                inside.accept()
        assert "HTTP status 302" in calls.cuts[0][0]
        assert KEY not in json.dumps([calls.cuts, entries], default=str)


def test_new_blocks__flood_of_blocks__dispatches_a_task_ten_times_a_second_at_most() -> (
    None
):
    dispatched: list[float] = []
    with private_processes() as processes, databases(processes, "one") as (engine,):
        chain = start_chain(processes)
        provider = chain.new_account()
        chain.register_provider(provider, [ChainNode(2, 32, 64_000)], ChainPrices())
        scheduled_jobs(chain, provider, 1)  # so each poll finds something
        harness = ChainHarness.of(chain, provider, engine)
        with node(forever(head("0x1"), head("0xffff")), chain.chain_id) as url:
            watch = NewBlocks(
                harness.site,
                PAUSE_S,
                look_at_queues,
                lambda _: dispatched.append(time.monotonic()),
                url,
            )
            watch.start()
            until(lambda: len(dispatched) > 20, "messages")
            watch.close()
        # Each is written down a moment after it was allowed, later on a busy machine,
        # so two may seem to be nearer than they were: the middle one tells the pace.
        tens_s = [
            later - earlier
            for earlier, later in zip(dispatched, dispatched[A_SECOND:], strict=False)
        ]
        assert median(tens_s) >= 0.9
        empty(engine)
