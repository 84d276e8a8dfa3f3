"""Several RPC endpoints that are asked as if they were one.

A request goes to the best of them and, when that does not answer, to the next. None is asked anything before it has said that
it serves the right chain, and one that is behind the others is not asked at all: what it does not know yet would look as if it
had never been. Signed transactions go to every one that answers.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import structlog

from supervisor_tasks.chain.rpc import DEADLINE_S, Call, Rpc, RpcUnavailableError, require

log = structlog.get_logger()

LOOK_EVERY_S = 2.0  # at one that answers
LOOK_AGAIN_S = 5.0  # at one that does not, or that serves another chain
LOOK_DEADLINE_S = 3.0
LEAST_SHARE_S = 5.0  # of the time for a request, that each of several endpoints has
BEHIND_BLOCKS = 5  # looks are not taken at the same moment
MEMORY_S = 60.0  # so long the head of an endpoint that is gone counts for what the others should have


class Health(StrEnum):
    """What is known of an endpoint."""

    UNKNOWN = "unknown"
    ALIVE = "alive"
    BEHIND = "behind"
    UNREACHABLE = "unreachable"
    WRONG_CHAIN = "wrong chain"


@dataclass(frozen=True, slots=True)
class Seen:
    """The last look at an endpoint: whether it answered, for which chain, its head, and when that was."""

    answered: bool | None = None  # None: never looked at
    chain_id: int = 0
    head: int = 0
    head_age_s: float = 0.0


def healths(seen: Sequence[Seen], chain_id: int) -> list[Health]:
    """What the looks say of the endpoints, compared with each other."""
    heads = [look.head for look in seen if look.chain_id == chain_id and look.head_age_s <= MEMORY_S]
    return [_health(look, chain_id, max(heads, default=0)) for look in seen]


def _health(look: Seen, chain_id: int, best: int) -> Health:
    if look.answered is None:
        return Health.UNKNOWN
    if not look.answered:
        return Health.UNREACHABLE
    if look.chain_id != chain_id:
        return Health.WRONG_CHAIN
    return Health.BEHIND if look.head < best - BEHIND_BLOCKS else Health.ALIVE


class Endpoint:
    """One endpoint and the last look at it."""

    def __init__(self, url: str, deadline_s: float) -> None:
        parts = urlsplit(url)
        self.name = (
            parts.hostname or "" if parts.port is None else f"{parts.hostname}:{parts.port}"
        )  # no path: it may be a key
        self.rpc = Rpc.at(url, deadline_s)
        self._looker = Rpc.at(url, LOOK_DEADLINE_S)
        self._looking = threading.Lock()
        self._answered: bool | None = None
        self._chain_id = 0
        self._head = 0
        self._looked_s = self._head_s = float("-inf")
        self.error = ""

    def seen(self) -> Seen:
        """The last look."""
        return Seen(self._answered, self._chain_id, self._head, time.monotonic() - self._head_s)

    def due(self, chain_id: int) -> bool:
        """Whether it is time to look again."""
        well = self._answered and self._chain_id == chain_id
        return time.monotonic() - self._looked_s > (LOOK_EVERY_S if well else LOOK_AGAIN_S)

    def look(self) -> None:
        """Ask for chain and head; where somebody is asking, wait for what they hear."""
        if not self._looking.acquire(blocking=False):
            with self._looking:
                return
        try:
            chain_id, head = map(require, self._looker.batch([("eth_chainId", ()), ("eth_blockNumber", ())]))
            self._chain_id, self._head, self._head_s = int(chain_id, 16), int(head, 16), time.monotonic()
            self._answered, self.error = True, ""
        except RpcUnavailableError as error:
            self.failed(error)
        finally:
            self._looked_s = time.monotonic()
            self._looking.release()

    def failed(self, error: RpcUnavailableError) -> None:
        """It did not answer; before it is used again it is looked at."""
        self._answered, self.error = False, str(error)


class Endpoints(Rpc):
    """Endpoints of one chain, best first as they are given. Threads may share it."""

    def __init__(self, urls: Sequence[str], chain_id: int) -> None:
        self._chain_id = chain_id
        share_s = max(DEADLINE_S / len(urls), LEAST_SHARE_S)  # the first must not use up the time of the next
        self._endpoints = [Endpoint(url, share_s) for url in urls]

    def health(self) -> dict[str, Health]:
        """What is known of each, by its host and port."""
        found = healths([endpoint.seen() for endpoint in self._endpoints], self._chain_id)
        return {endpoint.name: health for endpoint, health in zip(self._endpoints, found, strict=True)}

    def _post(self, calls: Sequence[Call]) -> list[Any]:
        self._look()
        asked: list[Endpoint] = []
        while (endpoint := self._next(asked)) is not None:
            asked.append(endpoint)
            try:
                answers = endpoint.rpc._post(calls)
            except RpcUnavailableError as error:
                endpoint.failed(error)
                log.warning("endpoint_failed", endpoint=endpoint.name, error=str(error))
            else:
                self._spread(calls, asked)
                return answers
        told = "; ".join(self._told(*pair) for pair in zip(self._endpoints, self.health().values(), strict=True))
        raise RpcUnavailableError(f"no RPC endpoint can be used: {told}")

    def _look(self) -> None:
        """Look at whatever is due, without waiting for it; only one that was never looked at is waited for, below."""
        for endpoint in self._endpoints:
            if endpoint.seen().answered is not None and endpoint.due(self._chain_id):
                threading.Thread(target=endpoint.look, name=f"look at {endpoint.name}", daemon=True).start()

    def _next(self, asked: Sequence[Endpoint]) -> Endpoint | None:
        """The best that was not asked yet. Those that did not answer last time come last, and have to say first which
        chain they serve.
        """
        left = [endpoint for endpoint in self._endpoints if endpoint not in asked]
        for usable in (Health.ALIVE, Health.UNKNOWN, Health.UNREACHABLE):
            for endpoint in left:
                if self._health_of(endpoint) is not usable:
                    continue
                if usable is not Health.ALIVE:
                    endpoint.look()
                if self._health_of(endpoint) is Health.ALIVE:
                    return endpoint
        return None

    def _health_of(self, endpoint: Endpoint) -> Health:
        found = healths([other.seen() for other in self._endpoints], self._chain_id)
        return found[self._endpoints.index(endpoint)]

    def _spread(self, calls: Sequence[Call], asked: Sequence[Endpoint]) -> None:
        """Tell the others, too, what was broadcast: the one that took it may be gone before it told anybody."""
        if any(method != "eth_sendRawTransaction" for method, _ in calls):
            return
        for endpoint in self._endpoints:
            if endpoint not in asked and self._health_of(endpoint) in (Health.ALIVE, Health.BEHIND):
                threading.Thread(
                    target=_tell, args=(endpoint, calls), name=f"tell {endpoint.name}", daemon=True
                ).start()

    def _told(self, endpoint: Endpoint, health: Health) -> str:
        why = f"serves chain {endpoint.seen().chain_id}, the settings want {self._chain_id}"
        return f"{endpoint.name} {health}: {why if health is Health.WRONG_CHAIN else endpoint.error}".rstrip(": ")


def _tell(endpoint: Endpoint, calls: Sequence[Call]) -> None:
    try:
        endpoint.rpc.batch(calls)
    except RpcUnavailableError as error:
        endpoint.failed(error)
        log.warning("endpoint_failed", endpoint=endpoint.name, error=str(error))
