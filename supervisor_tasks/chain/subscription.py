"""What a node announces over WebSocket: new heads, and logs of the contracts.

An announcement only starts threads: nothing that is announced is recorded. So only a
block's number, or one log of the right form, is kept of a message. A hostile node costs
bounded memory: a message has a greatest size, few messages wait, and web3's caches get
answers to our own requests only. It costs bounded time, too: a limited number of
messages a second is read. A redirect is an error, as over HTTP.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import structlog
from web3 import AsyncWeb3, WebSocketProvider
from web3.exceptions import Web3Exception
from web3.types import RPCResponse
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException

# its module limits how deep brackets are read
from supervisor_tasks.chain.rpc.client import RpcUnavailableError
from supervisor_tasks.chain.rpc.response_schema import HEAD, LOG, is_block_number
from supervisor_tasks.config.redaction import hiding
from supervisor_tasks.config.url_secrets import all_keys, shown
from supervisor_tasks.errors import TransientError

log = structlog.get_logger()

MAX_BYTES = 256 * 2**10  # of a message, and of the pages of an answer; a head has 2 KB
MAX_QUEUED_MESSAGES = 16  # received messages that are not read yet
# messages that are read a second; the others wait in the node
MAX_MESSAGES_A_SECOND = 1000
HEADS, LOGS = "newHeads", "logs"  # their names in eth_subscribe
# characters of an answer: a chain's number, a subscription's name
MAX_SHORT_CHARS = 100
PATIENCE_S = 10.0  # to connect, and for an answer
PING_EVERY_S = 5.0  # a dead connection that looks alive is closed after twice that
FIRST_AGAIN_S = 1.0
MAX_AGAIN_S = 30.0
# after a connection that lasted this long, the next one waits FIRST_AGAIN_S only
LASTED_S = 60.0


class SubscriptionError(TransientError):
    """The node announces nothing, or nothing to this client. The subscription tries
    again.
    """


class ForeignChainError(SubscriptionError):
    """The endpoint serves another chain than the settings name."""


class Listener(Protocol):
    """The receiver of announcements. The subscription calls it on its own thread, so no
    method may wait.
    """

    def subscribed(self) -> None:
        """From now on the node announces heads and logs."""

    def head(self, number: int) -> None:
        """The node announced a block of that number."""

    def log(self, entry: dict[str, Any]) -> None:
        """The node announced a log of the contracts. Its form is right; its content may
        be anything.
        """

    def disconnected(self, why: str, *, foreign: bool) -> None:
        """The node announces nothing any more; `foreign`: the endpoint serves another
        chain.
        """


@dataclass(frozen=True, slots=True)
class Message:
    """The content of a text frame: an answer to the request of that number, or the
    announcement of a subscription.
    """

    request: int | None = None
    answer: Any = None
    subscription: str = ""
    announced: Any = None


def read(frame: str | bytes) -> Message | None:
    """A frame's message; None when it is neither an answer nor an announcement. Raises
    SubscriptionError when the frame does not hold JSON; a retry does not help.
    """
    try:
        content = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise SubscriptionError("a message is not JSON") from error
    if not isinstance(content, dict):
        return None
    if content.get("method") == "eth_subscription":
        params = content.get("params")
        if not isinstance(params, dict):
            return None
        subscription = params.get("subscription")
        if not isinstance(subscription, str):
            return None
        return Message(subscription=subscription, announced=params.get("result"))
    number, answer = content.get("id"), content.get("result")
    if not isinstance(number, int):
        return None
    if not isinstance(answer, str) or len(answer) > MAX_SHORT_CHARS:
        return Message(request=number)
    return Message(request=number, answer=answer)


class _Connect(connect):
    """A connection that follows no redirect: the node must not choose which server
    inside this network is asked.
    """

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class _Provider(WebSocketProvider):
    """web3's provider. It passes on only answers to our own requests, and reports
    announcements at once.
    """

    def __init__(self, url: str, listener: Listener) -> None:
        options: dict[str, Any] = {
            "max_size": MAX_BYTES,
            "max_queue": MAX_QUEUED_MESSAGES,
            "compression": None,
            "open_timeout": PATIENCE_S,
            "close_timeout": 1.0,
            "ping_interval": PING_EVERY_S,
            "ping_timeout": PING_EVERY_S,
        }
        super().__init__(
            url,
            options,
            max_connection_retries=1,
            request_timeout=PATIENCE_S,
            use_text_frames=True,
        )
        self._listener = listener
        # what each unanswered request subscribes to; empty for other requests
        self._asked = dict[int, str]()
        self._names = dict[str, str]()  # what each subscription announces
        self._second_s, self._read = 0.0, 0

    def form_request(self, method: Any, params: Any = None) -> Any:
        """A request; its number is remembered."""
        request = super().form_request(method, params)
        kind = ""
        if method == "eth_subscribe":
            kind = params[0]
        self._asked[cast(int, request["id"])] = kind
        return request

    async def _provider_specific_connect(self) -> None:
        self._ws = await _Connect(str(self.endpoint_uri), **self.websocket_kwargs)

    async def disconnect(self) -> None:
        """Close the connection in every case; web3 leaves a connection open that ended
        with an error.
        """
        connection = self._ws
        try:
            await super().disconnect()
        finally:
            if connection is not None:
                await connection.close()

    async def _provider_specific_socket_reader(self) -> RPCResponse:
        """The next answer to a request of ours."""
        while True:
            if self._ws is None:
                raise SubscriptionError("the connection is closed")
            message = read(await self._ws.recv())
            await self._limit_rate()
            if message is None:
                continue
            if message.subscription:
                self._pass_on(message)
                continue
            request, answer = message.request, message.answer
            if request not in self._asked:
                continue
            kind = self._asked.pop(request)
            if kind and answer:
                # before the next message, which may be the first announcement
                self._names[answer] = kind
            return RPCResponse(jsonrpc="2.0", id=request, result=answer)

    def _pass_on(self, message: Message) -> None:
        """Give an announcement to the listener, if its form is right."""
        kind, content = self._names.get(message.subscription), message.announced
        if kind is None or not FORMS[kind](content):
            return
        if kind == HEADS:
            self._listener.head(int(content["number"], 16))
        else:
            kept = {name: content[name] for name in KEPT_OF_A_LOG}
            self._listener.log(kept)

    async def _limit_rate(self) -> None:
        """Wait for the next second when too many messages came in this one."""
        now_s = time.monotonic()
        if now_s - self._second_s >= 1.0:
            self._second_s, self._read = now_s, 0
        self._read += 1
        if self._read >= MAX_MESSAGES_A_SECOND:
            await asyncio.sleep(self._second_s + 1.0 - now_s)


FORMS = {HEADS: HEAD, LOGS: LOG}
KEPT_OF_A_LOG = (
    "address",
    "topics",
    "data",
    "blockNumber",
    "blockHash",
    "logIndex",
    "transactionHash",
)


class Subscription:
    """Keeps a subscription to a node, on a thread of its own with an event loop. `logs`
    returns the contracts' addresses and the topics.
    """

    def __init__(
        self,
        url: str,
        chain_id: int,
        logs: Callable[[], tuple[Sequence[str], Sequence[str]]],
        listener: Listener,
    ) -> None:
        self._url = url
        self._chain_id = chain_id
        self._logs = logs
        self._listener = listener
        self._name = shown(url, 1)
        self._without_key = hiding(all_keys(url), "(not shown)")
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._keep, name="subscription", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Close the present connection and open no other. The caller does not wait: the
        thread is a daemon.
        """
        self._closed.set()

    def _keep(self) -> None:
        again_s = FIRST_AGAIN_S
        while not self._closed.is_set():
            begun_s = time.monotonic()
            why = self._keep_one()
            if time.monotonic() - begun_s >= LASTED_S:
                again_s = FIRST_AGAIN_S
            else:
                again_s = min(2 * again_s, MAX_AGAIN_S)
            log.debug("subscription_ended", endpoint=self._name, why=why)
            self._closed.wait(again_s)

    def _keep_one(self) -> str:
        """Keep one connection until it ends; returns why it did."""
        foreign = False
        try:
            asyncio.run(self._follow())
            why = "the node closed the connection"
        except InvalidStatus as error:
            why = f"HTTP status {error.response.status_code}"
        except (
            SubscriptionError,
            WebSocketException,
            Web3Exception,
            OSError,
            TimeoutError,
        ) as error:
            foreign = isinstance(error, ForeignChainError)
            why = self._without_key(_text_of(error))
        except RpcUnavailableError as error:
            # the contracts' addresses are read over HTTP
            why = str(error)
        except Exception as error:
            # the edge of a thread: an error of web3 ends the connection, and not the
            # thread
            log.exception("subscription_broke", endpoint=self._name)
            why = type(error).__name__
        self._listener.disconnected(f"{self._name}: {why}", foreign=foreign)
        return why

    async def _follow(self) -> None:
        addresses, topics = await asyncio.to_thread(self._logs)
        wanted = {"address": list(addresses), "topics": [list(topics)]}
        async with AsyncWeb3(_Provider(self._url, self._listener)) as web3:
            provider = web3.provider
            async with asyncio.timeout(2 * PATIENCE_S):
                await self._require_chain(provider)
                await _subscribe(provider, LOGS, wanted)
                await _subscribe(provider, HEADS)
            self._listener.subscribed()
            await self._until_it_ends(provider)

    async def _require_chain(self, provider: _Provider) -> None:
        chain_id = (await provider.make_request("eth_chainId", []))["result"]  # type: ignore[arg-type]
        if not is_block_number(chain_id):
            raise SubscriptionError("the node does not report its chain")
        if int(chain_id, 16) != self._chain_id:
            raise ForeignChainError(
                f"serves chain {int(chain_id, 16)}, the settings want {self._chain_id}"
            )

    async def _until_it_ends(self, provider: _Provider) -> None:
        listening = provider._message_listener_task
        while listening is not None and not self._closed.is_set():
            done, _ = await asyncio.wait([listening], timeout=1.0)
            if done:
                listening.result()
                return


async def _subscribe(provider: _Provider, *params: Any) -> None:
    answer = (await provider.make_request("eth_subscribe", params))["result"]  # type: ignore[arg-type]
    if not answer:  # otherwise the subscription's name: see `read`
        raise SubscriptionError(f"the node rejected the subscription {params[0]}")


def _text_of(error: BaseException) -> str:
    inner = error.__cause__
    if isinstance(inner, InvalidStatus):
        return f"HTTP status {inner.response.status_code}"
    text = str(inner or error)
    if not text:
        return type(error).__name__
    return text
