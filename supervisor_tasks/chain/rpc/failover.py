"""Several RPC endpoints that are used as if they were one.

A request goes to the best endpoint. When that one does not answer, or rejects a part of
the request, the request goes to the next one. No endpoint is asked before it has
reported the right chain. An endpoint that is behind the others is not asked at all:
data that it does not have yet would look as if they had never existed. Signed
transactions go to every endpoint that answers.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from supervisor_tasks.chain.rpc.client import (
    DEADLINE_S,
    LIMIT_EXCEEDED,
    BatchRejectedError,
    Call,
    Rpc,
    RpcBusyError,
    RpcError,
    RpcUnavailableError,
    require,
)
from supervisor_tasks.chain.rpc.endpoint_health import (
    AheadTracker,
    EndpointProbe,
    Health,
    healths,
    others_head,
)
from supervisor_tasks.chain.rpc.unanswered import Unanswered
from supervisor_tasks.config.url_secrets import shown

log = structlog.get_logger()

CHECK_EVERY_S = 2.0  # between looks at an endpoint that answers
# between looks at one that does not answer, or that serves another chain
LOOK_AGAIN_S = 5.0
LOOK_DEADLINE_S = 3.0  # of a look at an endpoint that is not known to be slow
LEAST_SHARE_S = 5.0  # the least time for a request that each of several endpoints has
# for another thread's look: to connect, and to get an answer
LOOK_WAIT_S = 2 * LOOK_DEADLINE_S
# how long an endpoint that rejected what others answered is asked after them
REJECTS_S = 60.0
# how long it must reject nothing after a rejection, to count as one that works
MENDED_S = 90.0
# the order in which endpoints are asked
ORDER = (Health.ALIVE, Health.REJECTING, Health.UNKNOWN, Health.UNREACHABLE)
GET_BROADCASTS = (Health.ALIVE, Health.REJECTING, Health.BEHIND)


class Endpoint:
    """One endpoint and the last look at it."""

    def __init__(
        self, url: str, number: int, deadline_s: float, now_s: Callable[[], float]
    ) -> None:
        self.name = shown(url, number)
        self.rpc = Rpc.at(url, deadline_s, self.name)
        self._looker = Rpc.at(url, LOOK_DEADLINE_S, self.name)
        self._looking = threading.Lock()
        self.alone = AheadTracker()
        self._answered: bool | None = None
        self._slow = False  # its last answer took longer than LOOK_DEADLINE_S
        self._chain_id = 0
        self._head = 0
        self._looked_s = self._head_s = self._rejected_s = float("-inf")
        self.unavailable_since_s: float | None = None
        self.unanswered = Unanswered(now_s)
        # It is there, and has not answered what it was asked last: because of its rate
        # limit, or because of the question. A look that succeeds does not end that:
        # looks ask less.
        self.busy = False
        self.error = ""

    def seen(self) -> EndpointProbe:
        """The last look."""
        head_age_s = time.monotonic() - self._head_s
        rejected = self._rejected_ago_s() < REJECTS_S
        return EndpointProbe(
            self._answered,
            self._chain_id,
            self._head,
            head_age_s,
            self.alone.is_implausibly_ahead,
            rejected,
        )

    def due(self, chain_id: int) -> bool:
        """Whether it is time to look again, and no other thread is looking."""
        if self._looking.locked():
            return False
        looked_ago_s = time.monotonic() - self._looked_s
        if self._answered and self._chain_id == chain_id:
            return looked_ago_s > CHECK_EVERY_S
        return looked_ago_s > LOOK_AGAIN_S

    def look(self) -> None:
        """Ask for chain and head. While another thread asks, wait for its result."""
        if not self._looking.acquire(blocking=False):
            if self._looking.acquire(timeout=LOOK_WAIT_S):
                self._looking.release()
            return
        try:
            if self._slow:
                self._ask(self.rpc)
            else:
                self._ask(self._looker)
        finally:
            self._looked_s = time.monotonic()
            self._looking.release()

    def look_patiently(self) -> None:
        """Ask for chain and head with as much time as a request has: the endpoint may
        be slow, and there is no better one. Each thread asks for itself, so no thread
        waits for another one that waits.
        """
        self._ask(self.rpc)

    def _ask(self, rpc: Rpc) -> None:
        begun_s = time.monotonic()
        try:
            chain_id, head = map(
                require, rpc.batch([("eth_chainId", ()), ("eth_blockNumber", ())])
            )
            self._chain_id, self._head, self._head_s = (
                int(chain_id, 16),
                int(head, 16),
                time.monotonic(),
            )
            self._answered, self._slow = True, self._head_s - begun_s > LOOK_DEADLINE_S
            self.unanswered.answered()
            if self._rejected_ago_s() > MENDED_S:
                self.error = ""
        except (RpcUnavailableError, RpcError) as error:
            # a rejection, too: a working node answers these
            self.failed(error)

    def failed(self, error: RpcUnavailableError | RpcError) -> None:
        """The endpoint did not answer. It is looked at before it is used again."""
        self._answered, self._slow, self.error = False, False, str(error)
        self.busy = is_busy(error)
        self.unanswered.failed(busy=self.busy)

    def rejected(self, error: RpcError) -> None:
        """The endpoint rejected what another one has answered."""
        self._rejected_s, self.error = time.monotonic(), str(error)
        log.warning("endpoint_rejected", endpoint=self.name, error=self.error)

    def note(self, health: Health) -> None:
        """Remember since when the endpoint has been of no use. Another alarm reports an
        endpoint of another chain.
        """
        if health is Health.UNKNOWN:
            return
        if health in (Health.ALIVE, Health.WRONG_CHAIN):
            if self._rejected_ago_s() > MENDED_S:
                self.unavailable_since_s = None
            return
        if self.unavailable_since_s is None:
            self.unavailable_since_s = time.monotonic()

    def _rejected_ago_s(self) -> float:
        return time.monotonic() - self._rejected_s


class Endpoints(Rpc):
    """Endpoints of one chain, given in the order of preference. Threads may share
    it. `now_s` measures the time without answers.
    """

    def __init__(
        self,
        urls: Sequence[str],
        chain_id: int,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._chain_id = chain_id
        # the first must not use up the time of the next
        share_s = max(DEADLINE_S / len(urls), LEAST_SHARE_S)
        self._endpoints = [
            Endpoint(url, number, share_s, now_s)
            for number, url in enumerate(urls, start=1)
        ]
        # the answer of a second endpoint to what `each` asks
        self._second_answer = Unanswered(now_s)

    def health(self) -> dict[str, Health]:
        """The health of each endpoint, by its name: what may be shown of its URL, and
        its place in the settings.
        """
        found = healths(self._seen(), self._chain_id)
        names = [endpoint.name for endpoint in self._endpoints]
        return dict(zip(names, found, strict=True))

    def unavailable(self) -> dict[str, tuple[float, str]]:
        """The endpoints that are of no use, by name: for how many seconds, and what is
        wrong. The time starts at a call of this method, so it is as exact as the calls
        are frequent.
        """
        unavailable = dict[str, tuple[float, str]]()
        for endpoint, health in zip(
            self._endpoints, self.health().values(), strict=True
        ):
            endpoint.note(health)
            if endpoint.unavailable_since_s is not None:
                for_s = time.monotonic() - endpoint.unavailable_since_s
                unavailable[endpoint.name] = (
                    for_s,
                    f"{health}: {endpoint.error}".rstrip(": "),
                )
        return unavailable

    @property
    def number(self) -> int:
        """How many endpoints there are, with those that do not answer."""
        return len(self._endpoints)

    def each(self, calls: Sequence[Call]) -> dict[str, list[Any]]:
        """The answers of every endpoint, by its name; all are asked at the same time.
        Endpoints that do not answer, reject a call, or serve another chain are left
        out.
        """
        self._look()
        asked = [
            endpoint
            for endpoint in self._endpoints
            if endpoint.seen().answered is not False
        ]
        with ThreadPoolExecutor(len(self._endpoints)) as pool:
            answers = list(
                pool.map(lambda endpoint: self._answers_of(endpoint, calls), asked)
            )
        by_name = dict[str, list[Any]]()
        for endpoint, its_answers in zip(asked, answers, strict=True):
            if its_answers is not None:
                by_name[endpoint.name] = its_answers
        if len(by_name) > 1:
            self._second_answer.answered()
        else:
            # A lying endpoint can choose the question so that an honest one reaches its
            # rate limit, or cannot answer it.
            busy = any(endpoint.busy for endpoint in self._endpoints)
            self._second_answer.failed(busy=busy)
        return by_name

    def _answers_of(
        self, endpoint: Endpoint, calls: Sequence[Call]
    ) -> list[Any] | None:
        """The endpoint's answers; None when it does not answer, rejects a call, or
        serves another chain.
        """
        asked = [("eth_chainId", ()), *calls]
        try:
            chain_id, *answers = endpoint.rpc.batch(asked)
        except RpcUnavailableError as error:
            _fail(endpoint, error)
            # A lying endpoint can choose what is asked: too much for one answer, or what
            # takes too long. An endpoint that answers something else is there.
            endpoint.look()
            endpoint.busy = endpoint.busy or bool(endpoint.seen().answered)
            return None
        rejection = _rejection(asked, [chain_id, *answers])
        endpoint.busy = rejection is not None
        if isinstance(chain_id, RpcError) or int(chain_id, 16) != self._chain_id:
            return None
        if rejection is not None:
            return None
        return answers

    def alone_for_s(self) -> float:
        """For how many seconds at most one endpoint has answered the calls of `each`,
        or has answered any call. Time in which no endpoint was asked does not count.
        """
        silent_s = sorted(endpoint.unanswered.for_s for endpoint in self._endpoints)[1]
        return max(self._second_answer.for_s, silent_s)

    def _post(self, calls: Sequence[Call]) -> list[Any]:
        self._look()
        asked: list[Endpoint] = []
        rejections: dict[Endpoint, tuple[RpcError, list[Any]]] = {}
        while (endpoint := self._next(asked, only_alive=bool(rejections))) is not None:
            asked.append(endpoint)
            try:
                answers = endpoint.rpc._post(calls)
            except RpcUnavailableError as error:
                _fail(endpoint, error)
                continue
            rejection = _rejection(calls, answers)
            if rejection is None:
                self._broadcast(calls, asked)
                # the endpoint is the cause, and not the question
                for other, (why, _) in rejections.items():
                    other.rejected(why)
                return answers
            rejections[endpoint] = rejection, answers
        if rejections:
            _, answers = next(iter(rejections.values()))
            return answers
        states = map(self._state_of, self._endpoints, self.health().values())
        raise RpcUnavailableError(f"no RPC endpoint can be used: {'; '.join(states)}")

    def _look(self) -> None:
        """Start a look at each due endpoint, without waiting. `_next` waits for one
        that was never looked at.
        """
        alone = len(self._endpoints) == 1
        for endpoint in self._endpoints:
            if not endpoint.due(self._chain_id):
                continue
            if alone and endpoint.seen().answered is None:
                continue
            threading.Thread(
                target=self._look_at,
                args=(endpoint,),
                name=f"look at {endpoint.name}",
                daemon=True,
            ).start()

    def _look_at(self, endpoint: Endpoint) -> None:
        endpoint.look()
        place = self._endpoints.index(endpoint)
        endpoint.alone = endpoint.alone.seen_again(
            others_head(place, self._seen(), self._chain_id)
        )

    def _next(self, asked: Sequence[Endpoint], *, only_alive: bool) -> Endpoint | None:
        """The best endpoint that was not asked yet; None when none is left. Endpoints
        that reject come later. Endpoints that did not answer last time come last, and
        must first report their chain; one that another thread's look has just found
        alive is taken, too. With `only_alive` there is no wait for these: another
        endpoint has rejected the calls, and only a second answer is wanted. When there
        is no answer at all, endpoints that may be slow get more time.
        """
        left = [endpoint for endpoint in self._endpoints if endpoint not in asked]
        order = (Health.ALIVE,) if only_alive else ORDER
        for health in order:
            for endpoint in left:
                if self._is_usable(endpoint, health):
                    return endpoint
        if only_alive:
            return None
        return next(filter(self._answers_slowly, left), None)

    def _is_usable(self, endpoint: Endpoint, wanted: Health) -> bool:
        """Whether an endpoint is alive, or rejects calls and `wanted` is REJECTING. If
        `wanted` means that the endpoint may be alive, this looks at it first.
        """
        may_be_alive = wanted in (Health.UNKNOWN, Health.UNREACHABLE)
        if may_be_alive and self._health_of(endpoint) is wanted:
            endpoint.look()
        health = self._health_of(endpoint)
        if health is Health.REJECTING:
            return wanted is Health.REJECTING
        return health is Health.ALIVE

    def _answers_slowly(self, endpoint: Endpoint) -> bool:
        if self._health_of(endpoint) is Health.UNREACHABLE:
            endpoint.look_patiently()
        return self._health_of(endpoint) is Health.ALIVE

    def _health_of(self, endpoint: Endpoint) -> Health:
        found = healths(self._seen(), self._chain_id)
        return found[self._endpoints.index(endpoint)]

    def _seen(self) -> list[EndpointProbe]:
        """The last look at each endpoint."""
        return [endpoint.seen() for endpoint in self._endpoints]

    def _broadcast(self, calls: Sequence[Call], asked: Sequence[Endpoint]) -> None:
        """Send transactions to the other endpoints, too: the one that took them may
        stop before it passes them on to any other node.
        """
        if any(method != "eth_sendRawTransaction" for method, _ in calls):
            return
        for endpoint in self._endpoints:
            if endpoint in asked:
                continue
            if self._health_of(endpoint) not in GET_BROADCASTS:
                continue
            threading.Thread(
                target=_send_to,
                args=(endpoint, calls),
                name=f"tell {endpoint.name}",
                daemon=True,
            ).start()

    def _state_of(self, endpoint: Endpoint, health: Health) -> str:
        """The endpoint's name, its health, and what is wrong with it."""
        problem = endpoint.error
        if health is Health.WRONG_CHAIN:
            problem = f"serves chain {endpoint.seen().chain_id}, the settings want {self._chain_id}"
        return f"{endpoint.name} {health}: {problem}".rstrip(": ")


def _send_to(endpoint: Endpoint, calls: Sequence[Call]) -> None:
    try:
        endpoint.rpc.batch(calls)
    except RpcUnavailableError as error:
        _fail(endpoint, error)


def _fail(endpoint: Endpoint, error: RpcUnavailableError) -> None:
    endpoint.failed(error)
    log.warning("endpoint_failed", endpoint=endpoint.name, error=str(error))


def is_busy(error: RpcUnavailableError | RpcError | None) -> bool:
    """Whether the endpoint has had too many requests. Pure."""
    if isinstance(error, RpcError | BatchRejectedError):
        return error.code == LIMIT_EXCEEDED
    return isinstance(error, RpcBusyError)


def _rejection(calls: Sequence[Call], answers: Sequence[Any]) -> RpcError | None:
    """The first error that may be the node's own: it is busy, no longer has that state,
    does not offer the method. A contract's rejection, and an error in a transaction, do
    not count: other nodes would answer the same.
    """
    for (method, _), answer in zip(calls, answers, strict=True):
        if method == "eth_sendRawTransaction":
            continue
        if isinstance(answer, RpcError) and not answer.reverted:
            return answer
    return None
