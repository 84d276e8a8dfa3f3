"""JSON-RPC over HTTP: one call or a batch, with errors sorted by kind."""

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import requests
from web3 import HTTPProvider
from web3.types import RPCEndpoint

from supervisor_tasks.chain.rpc.response_schema import is_bytes, matches_schema
from supervisor_tasks.config.redaction import hiding
from supervisor_tasks.config.url_secrets import all_keys, shown
from supervisor_tasks.connections.bounded_http import prepared_session
from supervisor_tasks.errors import PermanentError, TransientError
from supervisor_tasks.instruments import RPC_CALLS, RPC_REQUESTS, timed

BATCH_CALLS = 100  # calls in one HTTP request; nodes limit their number
MIN_BATCH_CALLS = 10  # calls; no node rejects so few because of their number
# how long a node's limit is remembered; a short failure may look like a limit
REMEMBERED_S = 600.0
TOO_MANY_REQUESTS = 429
LIMIT_EXCEEDED = -32005  # of JSON-RPC: EIP-1474
# HTTP statuses of 4xx that do not depend on the request
PASSING = (408, TOO_MANY_REQUESTS)
TIMEOUT_S = 10.0  # to connect and to send
DEADLINE_S = 20.0  # for the whole answer

# py_ecc, a dependency of web3, sets it to 100,000. With that limit an answer of many
# brackets ends the process by a segmentation fault.
sys.setrecursionlimit(1000)

Call = tuple[str, Sequence[Any]]


class RpcUnavailableError(TransientError):
    """The node cannot be reached or does not answer with JSON-RPC. Retry later."""


class RpcError(PermanentError):
    """The node answered with an error. `data` holds the revert data of a call that
    reverted; otherwise it is empty.
    """

    def __init__(self, code: int, message: str, data: str = "") -> None:
        super().__init__(f"{message} (code {code})")
        self.code, self.message, self.data = code, message, data

    @property
    def reverted(self) -> bool:
        """Whether a contract rejected the call, and not the node."""
        return bool(self.data) or "revert" in self.message


class RpcBusyError(RpcUnavailableError):
    """The node limits the rate of requests, and has had too many. Retry later."""


class BatchRejectedError(RpcUnavailableError):
    """The node rejected all calls of a request together; it may answer fewer calls at a
    time. `code` is JSON-RPC's, 0 if there is none.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class _PlainJson(HTTPProvider):
    """Encodes a batch as one JSON text. web3 encodes each call alone, and looks in it
    for bytes and attributes, which our calls do not have. For a batch of a thousand
    calls, web3 takes as long as the node takes to answer.
    """

    def encode_batch_rpc_request(
        self, requests: Sequence[tuple[RPCEndpoint, Any]]
    ) -> bytes:
        """The body of the request, with the next ids."""
        numbers = self.request_counter
        calls = [
            {"jsonrpc": "2.0", "method": name, "params": given, "id": next(numbers)}
            for name, given in requests
        ]
        return json.dumps(calls).encode()


class Rpc:
    """One endpoint. Threads may share it."""

    def __init__(self, provider: HTTPProvider, name: str = "") -> None:
        self._provider = provider
        # how many calls the node took after it rejected more, and when
        self._limit = sys.maxsize, float("-inf")
        self._name = name or shown(str(provider.endpoint_uri), 1)
        self._without_key = hiding(all_keys(str(provider.endpoint_uri)), "(not shown)")

    @classmethod
    def at(cls, url: str, deadline_s: float = DEADLINE_S, name: str = "") -> "Rpc":
        """An endpoint by its URL; `name` is its label in the metrics. web3's own
        retries are off: the wallet decides what is sent again.
        """
        options = {"timeout": min(TIMEOUT_S, deadline_s)}
        bounded = prepared_session(deadline_s)
        provider = _PlainJson(
            url,
            request_kwargs=options,
            session=bounded,
            exception_retry_configuration=None,
        )
        return Rpc(provider, name)

    def call(self, method: str, *params: Any) -> Any:
        """One call. Raises RpcUnavailableError (retry helps) or RpcError (it does
        not).
        """
        return require(self.batch([(method, params)])[0])

    def batch(self, calls: Sequence[Call], at_once: int = BATCH_CALLS) -> list[Any]:
        """The answers in the order of the calls, at most `at_once` calls in one HTTP
        request. An RpcError stands in place of each answer that the node rejected.
        Raises RpcUnavailableError when the node does not answer at all; a retry helps.
        """
        answers: list[Any] = []
        for start in range(0, len(calls), at_once):
            answers += self._post(calls[start : start + at_once])
        return answers

    def _post(self, calls: Sequence[Call]) -> list[Any]:
        """Send one HTTP request, or several smaller ones when the node limits the calls
        in a request.
        """
        if len(calls) > self._max_calls():
            return self.batch(calls, self._max_calls())
        try:
            return self._request(calls)
        except BatchRejectedError:
            if len(calls) <= MIN_BATCH_CALLS:
                raise
        fewer = max(min(BATCH_CALLS, len(calls) // 2), MIN_BATCH_CALLS)
        # splits them again if the node rejects these too
        first = self._post(calls[:fewer])
        self._limit = min(self._max_calls(), fewer), time.monotonic()
        return first + self._post(calls[fewer:])

    def _max_calls(self) -> int:
        """How many calls the node takes in one request, as far as is known."""
        max_calls, since_s = self._limit
        if time.monotonic() - since_s >= REMEMBERED_S:
            return sys.maxsize
        return max_calls

    def _request(self, calls: Sequence[Call]) -> list[Any]:
        """Send one HTTP request, and measure it."""
        numbers = Counter(method for method, _ in calls)
        for method, number in numbers.items():
            RPC_CALLS.labels(self._name, method).inc(number)
        with timed(RPC_REQUESTS, self._name):
            return self._send(calls)

    def _send(self, calls: Sequence[Call]) -> list[Any]:
        requested = [(RPCEndpoint(method), list(params)) for method, params in calls]
        try:
            response: Any = self._provider.make_batch_request(requested)
        except (requests.RequestException, ValueError) as error:
            # Not `from error`: its text contains the URL, which would then be in every
            # traceback.
            text = f"the RPC endpoint does not answer: {self._without_key(_text_of(error))}"
            if _may_be_too_large(error):
                raise BatchRejectedError(text) from None
            if _http_status(error) == TOO_MANY_REQUESTS:
                raise RpcBusyError(text) from None
            raise RpcUnavailableError(text) from None
        except (AttributeError, TypeError, RecursionError) as error:
            # web3 sorts answers by id; an id may be anything
            raise RpcUnavailableError(
                f"the RPC endpoint does not speak JSON-RPC: {type(error).__name__}"
            ) from None
        if _rejects_all(response, len(calls)):
            raise BatchRejectedError(
                f"the RPC endpoint rejected: {self._without_key(str(response))[:200]}",
                _code_of(response),
            )
        if not isinstance(response, list) or len(response) != len(calls):
            raise self._unexpected(response, f"{len(calls)} calls")
        return [
            self._answer(call, entry)
            for call, entry in zip(calls, response, strict=True)
        ]

    def _answer(self, call: Call, entry: Any) -> Any:
        method, params = call
        if not isinstance(entry, dict):
            raise self._unexpected(entry, method)
        error = entry.get("error")
        if error is None:
            if "result" not in entry:
                raise self._unexpected(entry, method)
            if not matches_schema(method, params, entry["result"]):
                raise self._unexpected(entry, method)
            return entry["result"]
        if not isinstance(error, dict) or not isinstance(error.get("code"), int):
            raise self._unexpected(entry, method)
        message = self._without_key(str(error.get("message", error)))
        return RpcError(error["code"], message, _revert_data(error))

    def _unexpected(self, answer: Any, question: str) -> RpcUnavailableError:
        return RpcUnavailableError(
            f"the RPC endpoint answered {self._without_key(str(answer))[:200]!r} to {question}"
        )


def _is_error(response: Any) -> bool:
    """Whether it is one error for all calls. Erigon and Nethermind answer so; geth puts
    the error into a list.
    """
    return isinstance(response, dict) and isinstance(response.get("error"), dict)


def _http_status(error: Exception) -> int | None:
    """The status of the response that the error is about, if there is one."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return error.response.status_code
    return None


def _may_be_too_large(error: Exception) -> bool:
    """Whether the server may have rejected a request for its size."""
    status = _http_status(error)
    if status is None or status in PASSING:
        return False
    return 400 <= status < 500


def _text_of(error: Exception) -> str:
    """What went wrong, without the URL, which the text of requests' own errors
    contains.
    """
    status = _http_status(error)
    if status is not None:
        return f"HTTP status {status}"
    if not error.args:
        return str(error)
    inner = error.args[0]
    return str(getattr(inner, "reason", None) or inner)


def require(answer: Any) -> Any:
    """Return an answer that is not an error. Raises RpcError for a call that reverted
    (retry does not help), and RpcUnavailableError for every other rejection: the node is
    busy, behind, or between two blocks.
    """
    if isinstance(answer, RpcError):
        if answer.reverted:
            raise answer
        kind = RpcUnavailableError
        if answer.code == LIMIT_EXCEEDED:
            kind = RpcBusyError
        raise kind(f"the RPC endpoint rejected: {answer}") from answer
    return answer


def _rejects_all(response: Any, calls: int) -> bool:
    """Whether one error stands for the answers of several calls."""
    if isinstance(response, list):
        if len(response) != 1 or calls <= 1:
            return False
        response = response[0]
    return _is_error(response)


def _code_of(rejection: Any) -> int:
    """The code of the one error that stands for the answers of several calls."""
    (entry,) = rejection if isinstance(rejection, list) else [rejection]
    code: int = entry["error"].get("code", 0)
    return code


def _revert_data(error: Mapping[str, Any]) -> str:
    """The data of a revert as 0x-hex; empty if the error has none."""
    data = error.get("data", "")
    if isinstance(data, dict):  # some nodes wrap it once more
        data = data.get("data", "")
    text = str(data).removeprefix("Reverted ")  # Parity's prefix
    if not is_bytes(text):
        return ""
    return text
