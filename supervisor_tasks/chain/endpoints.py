"""Several RPC endpoints that are asked as if they were one.

A request goes to the best of them and, when that does not answer or refuses a part of it, to the next. None is asked anything
before it has said that it serves the right chain, and one that is behind the others is not asked at all: what it does not know
yet would look as if it had never been. Signed transactions go to every one that answers.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog

from supervisor_tasks.chain.rpc import DEADLINE_S, Call, Rpc, RpcError, RpcUnavailableError, require
from supervisor_tasks.chain.unanswered import Unanswered
from supervisor_tasks.urls import shown

log = structlog.get_logger()

LOOK_EVERY_S = 2.0  # at one that answers
LOOK_AGAIN_S = 5.0  # at one that does not, or that serves another chain
LOOK_DEADLINE_S = 3.0  # of one that is not known to be slow
LEAST_SHARE_S = 5.0  # of the time for a request, that each of several endpoints has
BEHIND_BLOCKS = 5  # looks are not taken at the same moment
LOOK_WAIT_S = 2 * LOOK_DEADLINE_S  # for somebody else's look: to connect, and to be answered
LOOKS_ALONE = 30  # so often in a row may an endpoint be alone far ahead of others; then they are believed
REFUSES_S = 60.0  # so long one that refused what others answered is asked after them
MENDED_S = 90.0  # so long after that it must have refused nothing more to be well
MEMORY_S = 60.0  # so long the head of an endpoint that is gone counts for what the others should have


class Health(StrEnum):
    """What is known of an endpoint."""

    UNKNOWN = "unknown"
    ALIVE = "alive"
    BEHIND = "behind"
    AHEAD = "ahead"
    REFUSES = "refuses"
    UNREACHABLE = "unreachable"
    WRONG_CHAIN = "wrong chain"


ORDER = (Health.ALIVE, Health.REFUSES, Health.UNKNOWN, Health.UNREACHABLE)  # of being asked
TOLD = (Health.ALIVE, Health.REFUSES, Health.BEHIND)  # of what is broadcast


@dataclass(frozen=True, slots=True)
class Seen:
    """The last look at an endpoint: whether it answered, for which chain, its head, and when that was."""

    answered: bool | None = None  # None: never looked at
    chain_id: int = 0
    head: int = 0
    head_age_s: float = 0.0
    disbelieved: bool = False  # see Alone
    refused: bool = False  # lately, what others answered


def healths(seen: Sequence[Seen], chain_id: int) -> list[Health]:
    """What the looks say of the endpoints, compared with each other."""
    believed = [look for look in seen if not look.disbelieved]
    heads = [look.head for look in believed if look.chain_id == chain_id and look.head_age_s <= MEMORY_S]
    return [_health(look, chain_id, max(heads, default=0)) for look in seen]


def far_behind(place: int, seen: Sequence[Seen], chain_id: int) -> int | None:
    """The head of the others when they are far behind the endpoint at that place, and at one with each other. None when they
    are not, or not two: of two endpoints nobody can say which one is right.
    """
    others = [look for number, look in enumerate(seen) if number != place and look.answered]
    heads = [look.head for look in others if look.chain_id == chain_id and look.head_age_s <= MEMORY_S]
    if len(heads) < 2 or max(heads) - min(heads) > BEHIND_BLOCKS or seen[place].head <= max(heads) + BEHIND_BLOCKS:
        return None
    return max(heads)


@dataclass(frozen=True, slots=True)
class Alone:
    """How often in a row an endpoint was alone far ahead of the others, where these were at first, and where they are."""

    looks: int = 0
    others_then: int = 0
    others_now: int = 0

    def seen_again(self, others: int | None) -> "Alone":
        """After another look at it, with the head of the others if they are far behind."""
        return Alone() if others is None else Alone(self.looks + 1, self.others_then if self.looks else others, others)

    @property
    def disbelieved(self) -> bool:
        """Whether the others have gone on all the time without it. Others that stand still are behind."""
        return self.looks >= LOOKS_ALONE and self.others_now > self.others_then


def _health(look: Seen, chain_id: int, best: int) -> Health:
    if look.answered is None:
        return Health.UNKNOWN
    if not look.answered:
        return Health.UNREACHABLE
    if look.chain_id != chain_id:
        return Health.WRONG_CHAIN
    if look.disbelieved:
        return Health.AHEAD
    if look.head < best - BEHIND_BLOCKS:
        return Health.BEHIND
    return Health.REFUSES if look.refused else Health.ALIVE


class Endpoint:
    """One endpoint and the last look at it."""

    def __init__(self, url: str, number: int, deadline_s: float) -> None:
        self.name = shown(url, number)
        self.rpc = Rpc.at(url, deadline_s)
        self._looker = Rpc.at(url, LOOK_DEADLINE_S)
        self._looking = threading.Lock()
        self.alone = Alone()
        self._answered: bool | None = None
        self._slow = False  # when it answered last, it was not within LOOK_DEADLINE_S
        self._chain_id = 0
        self._head = 0
        self._looked_s = self._head_s = self._refused_s = float("-inf")
        self.away_since_s: float | None = None
        self.unanswered = Unanswered()
        self.error = ""

    def seen(self) -> Seen:
        """The last look."""
        head_age_s = time.monotonic() - self._head_s
        refused = self._refused_ago_s() < REFUSES_S
        return Seen(self._answered, self._chain_id, self._head, head_age_s, self.alone.disbelieved, refused)

    def due(self, chain_id: int) -> bool:
        """Whether it is time to look again, and nobody does."""
        if self._looking.locked():
            return False
        well = self._answered and self._chain_id == chain_id
        return time.monotonic() - self._looked_s > (LOOK_EVERY_S if well else LOOK_AGAIN_S)

    def look(self) -> None:
        """Ask for chain and head; where somebody is asking, wait for what they hear."""
        if not self._looking.acquire(blocking=False):
            if self._looking.acquire(timeout=LOOK_WAIT_S):
                self._looking.release()
            return
        try:
            self._ask(self.rpc if self._slow else self._looker)
        finally:
            self._looked_s = time.monotonic()
            self._looking.release()

    def look_patiently(self) -> None:
        """Ask for chain and head with as much time as a request has: it may be slow, and there is no better one. Whoever needs
        it asks for himself; nobody waits for others who wait.
        """
        self._ask(self.rpc)

    def _ask(self, rpc: Rpc) -> None:
        begun_s = time.monotonic()
        try:
            chain_id, head = map(require, rpc.batch([("eth_chainId", ()), ("eth_blockNumber", ())]))
            self._chain_id, self._head, self._head_s = int(chain_id, 16), int(head, 16), time.monotonic()
            self._answered, self._slow = True, self._head_s - begun_s > LOOK_DEADLINE_S
            self.unanswered.answered()
            if self._refused_ago_s() > MENDED_S:
                self.error = ""
        except (RpcUnavailableError, RpcError) as error:  # whatever its words: a node that lives answers these
            self.failed(error)

    def failed(self, error: RpcUnavailableError | RpcError) -> None:
        """It did not answer; before it is used again it is looked at."""
        self._answered, self._slow, self.error = False, False, str(error)
        self.unanswered.failed()

    def refused(self, error: RpcError) -> None:
        """It refused what another one has answered."""
        self._refused_s, self.error = time.monotonic(), str(error)
        log.warning("endpoint_refused", endpoint=self.name, error=self.error)

    def note(self, health: Health) -> None:
        """Remember since when it has been of no use. One of another chain is told otherwise."""
        if health in (Health.ALIVE, Health.WRONG_CHAIN) and self._refused_ago_s() > MENDED_S:
            self.away_since_s = None
        elif health not in (Health.ALIVE, Health.WRONG_CHAIN, Health.UNKNOWN) and self.away_since_s is None:
            self.away_since_s = time.monotonic()

    def _refused_ago_s(self) -> float:
        return time.monotonic() - self._refused_s


class Endpoints(Rpc):
    """Endpoints of one chain, best first as they are given. Threads may share it."""

    def __init__(self, urls: Sequence[str], chain_id: int) -> None:
        self._chain_id = chain_id
        share_s = max(DEADLINE_S / len(urls), LEAST_SHARE_S)  # the first must not use up the time of the next
        self._endpoints = [Endpoint(url, number, share_s) for number, url in enumerate(urls, start=1)]
        self._second_answer = Unanswered()  # to what each was asked

    def health(self) -> dict[str, Health]:
        """What is known of each, by its name: what of its URL may be seen, and its place in the settings."""
        found = healths([endpoint.seen() for endpoint in self._endpoints], self._chain_id)
        return {endpoint.name: health for endpoint, health in zip(self._endpoints, found, strict=True)}

    def away(self) -> dict[str, tuple[float, str]]:
        """Those that are of no use, by name: for how many seconds, as often as this was asked, and what is wrong."""
        health = list(self.health().values())
        for endpoint, is_ in zip(self._endpoints, health, strict=True):
            endpoint.note(is_)
        return {
            endpoint.name: (time.monotonic() - endpoint.away_since_s, f"{is_}: {endpoint.error}".rstrip(": "))
            for endpoint, is_ in zip(self._endpoints, health, strict=True)
            if endpoint.away_since_s is not None
        }

    @property
    def number(self) -> int:
        """How many there are, whether they answer or not."""
        return len(self._endpoints)

    def each(self, calls: Sequence[Call]) -> dict[str, list[Any]]:
        """What every endpoint answers, by its name; they are asked at the same time. Left out are those that do not answer,
        that refuse a call, and that serve another chain.
        """
        self._look()
        asked = [endpoint for endpoint in self._endpoints if endpoint.seen().answered is not False]
        with ThreadPoolExecutor(len(self._endpoints)) as pool:
            answers = list(pool.map(lambda endpoint: self._said(endpoint, calls), asked))
        said = {endpoint.name: found for endpoint, found in zip(asked, answers, strict=True) if found is not None}
        if len(said) > 1:
            self._second_answer.answered()
        else:
            self._second_answer.failed()
        return said

    def measure_by(self, now_s: Callable[[], float]) -> None:
        """Take the time without answers from another clock."""
        for unanswered in (self._second_answer, *(endpoint.unanswered for endpoint in self._endpoints)):
            unanswered.now_s = now_s

    def _said(self, endpoint: Endpoint, calls: Sequence[Call]) -> list[Any] | None:
        try:
            chain_id, *answers = endpoint.rpc.batch([("eth_chainId", ()), *calls])
        except RpcUnavailableError as error:
            _fail(endpoint, error)
            return None
        refused = isinstance(chain_id, RpcError) or _refusal(calls, answers) is not None
        return None if refused or int(chain_id, 16) != self._chain_id else answers

    def alone_for_s(self) -> float:
        """For how long at most one endpoint has answered what each was asked, or has said anything at all. Time in
        which none was asked does not count.
        """
        silent_s = sorted(endpoint.unanswered.for_s for endpoint in self._endpoints)[1]
        return max(self._second_answer.for_s, silent_s)

    def _post(self, calls: Sequence[Call]) -> list[Any]:
        self._look()
        asked: list[Endpoint] = []
        refusals: dict[Endpoint, tuple[RpcError, list[Any]]] = {}
        while (endpoint := self._next(asked, only_alive=bool(refusals))) is not None:
            asked.append(endpoint)
            try:
                answers = endpoint.rpc._post(calls)
            except RpcUnavailableError as error:
                _fail(endpoint, error)
                continue
            refusal = _refusal(calls, answers)
            if refusal is None:
                self._spread(calls, asked)
                for other, (why, _) in refusals.items():  # it is that endpoint, and not the question
                    other.refused(why)
                return answers
            refusals[endpoint] = refusal, answers
        if refusals:
            return next(answers for _, answers in refusals.values())
        told = "; ".join(self._told(*pair) for pair in zip(self._endpoints, self.health().values(), strict=True))
        raise RpcUnavailableError(f"no RPC endpoint can be used: {told}")

    def _look(self) -> None:
        """Look at whatever is due, without waiting for it; only one that was never looked at is waited for, below."""
        alone = len(self._endpoints) == 1
        for endpoint in self._endpoints:
            if endpoint.due(self._chain_id) and not (alone and endpoint.seen().answered is None):
                threading.Thread(
                    target=self._look_at, args=(endpoint,), name=f"look at {endpoint.name}", daemon=True
                ).start()

    def _look_at(self, endpoint: Endpoint) -> None:
        endpoint.look()
        seen = [other.seen() for other in self._endpoints]
        endpoint.alone = endpoint.alone.seen_again(far_behind(self._endpoints.index(endpoint), seen, self._chain_id))

    def _next(self, asked: Sequence[Endpoint], *, only_alive: bool) -> Endpoint | None:
        """The best that was not asked yet. Those that refuse come later. Those that did not answer last time come last, and
        have to say first which chain they serve; also one that somebody else's look has just found alive is taken. Nobody
        waits for these where there is an answer, and only a second opinion is wanted. Where there is none at all, those that
        may be slow get more time.
        """
        left = [endpoint for endpoint in self._endpoints if endpoint not in asked]
        for usable in (Health.ALIVE,) if only_alive else ORDER:
            for endpoint in left:
                if usable in (Health.UNKNOWN, Health.UNREACHABLE) and self._health_of(endpoint) is usable:
                    endpoint.look()
                health = self._health_of(endpoint)
                if health is Health.ALIVE or health is usable is Health.REFUSES:
                    return endpoint
        return None if only_alive else next(filter(self._answers_slowly, left), None)

    def _answers_slowly(self, endpoint: Endpoint) -> bool:
        if self._health_of(endpoint) is Health.UNREACHABLE:
            endpoint.look_patiently()
        return self._health_of(endpoint) is Health.ALIVE

    def _health_of(self, endpoint: Endpoint) -> Health:
        found = healths([other.seen() for other in self._endpoints], self._chain_id)
        return found[self._endpoints.index(endpoint)]

    def _spread(self, calls: Sequence[Call], asked: Sequence[Endpoint]) -> None:
        """Tell the others, too, what was broadcast: the one that took it may be gone before it told anybody."""
        if any(method != "eth_sendRawTransaction" for method, _ in calls):
            return
        for endpoint in self._endpoints:
            if endpoint not in asked and self._health_of(endpoint) in TOLD:
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
        _fail(endpoint, error)


def _fail(endpoint: Endpoint, error: RpcUnavailableError) -> None:
    endpoint.failed(error)
    log.warning("endpoint_failed", endpoint=endpoint.name, error=str(error))


def _refusal(calls: Sequence[Call], answers: Sequence[Any]) -> RpcError | None:
    """The first error that may be the node's own: it is busy, has forgotten that state, does not offer the method. What a
    contract says, and what is wrong with a transaction, others would say, too.
    """
    for (method, _), answer in zip(calls, answers, strict=True):
        if isinstance(answer, RpcError) and not answer.reverted and method != "eth_sendRawTransaction":
            return answer
    return None
