"""JSON-RPC over HTTP: one call or a batch, with errors sorted."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import requests
from web3 import HTTPProvider
from web3.types import RPCEndpoint

from supervisor_tasks.chain.answers import fits, is_bytes
from supervisor_tasks.chain.http import session
from supervisor_tasks.errors import PermanentError, TransientError
from supervisor_tasks.redaction import hiding
from supervisor_tasks.urls import all_keys

BATCH = 100  # calls in one HTTP request; nodes limit it
LEAST = 10  # no node refuses so few calls for their number
REMEMBERED_S = 600.0  # so long a node is asked no more at once than it took: a moment's trouble may look like a limit
PASSING = (408, 429)  # HTTP statuses of 4xx that say nothing of what was asked
TIMEOUT_S = 10.0  # to connect and to send
DEADLINE_S = 20.0  # for the whole answer

# py_ecc, which web3 brings, sets it to 100,000: then an answer of many brackets ends the process by a segmentation fault.
sys.setrecursionlimit(1000)

Call = tuple[str, Sequence[Any]]


class RpcUnavailableError(TransientError):
    """The node cannot be reached or does not speak JSON-RPC; again later."""


class RpcError(PermanentError):
    """The node answered with an error. `data` holds the revert data of a call that reverted, else it is empty."""

    def __init__(self, code: int, message: str, data: str = "") -> None:
        super().__init__(f"{message} (code {code})")
        self.code, self.message, self.data = code, message, data

    @property
    def reverted(self) -> bool:
        """Whether a contract said no, and not the node."""
        return bool(self.data) or "revert" in self.message


class BatchRefusedError(RpcUnavailableError):
    """The node has refused all calls of a request in one; fewer at a time may be answered."""


class Rpc:
    """One endpoint. Threads may share it."""

    def __init__(self, provider: HTTPProvider) -> None:
        self._provider = provider
        self._limit = sys.maxsize, float("-inf")  # calls that the node took when it had refused more, and when that was
        self._without_key = hiding(all_keys(str(provider.endpoint_uri)), "(not shown)")

    @classmethod
    def at(cls, url: str, deadline_s: float = DEADLINE_S) -> "Rpc":
        """An endpoint by its URL. web3's own retries are off: what is sent again is decided by the wallet."""
        options = {"timeout": min(TIMEOUT_S, deadline_s)}
        bounded = session(deadline_s)
        return Rpc(HTTPProvider(url, request_kwargs=options, session=bounded, exception_retry_configuration=None))

    def call(self, method: str, *params: Any) -> Any:
        """One call. Raises RpcUnavailableError (retry helps) or RpcError (it does not)."""
        return require(self.batch([(method, params)])[0])

    def batch(self, calls: Sequence[Call], at_once: int = BATCH) -> list[Any]:
        """Answers in the order of the calls, so many in one HTTP request; an RpcError stands where the node refused one.
        Raises RpcUnavailableError when the node does not answer at all.
        """
        answers: list[Any] = []
        for start in range(0, len(calls), at_once):
            answers += self._post(calls[start : start + at_once])
        return answers

    def _post(self, calls: Sequence[Call]) -> list[Any]:
        """One HTTP request, or as many as the node wants it to be."""
        if len(calls) > self._most():
            return self.batch(calls, self._most())
        try:
            return self._request(calls)
        except BatchRefusedError:
            if len(calls) <= LEAST:
                raise
        fewer = max(min(BATCH, len(calls) // 2), LEAST)
        first = self._post(calls[:fewer])  # fewer again, should it refuse these as well
        self._limit = min(self._most(), fewer), time.monotonic()
        return first + self._post(calls[fewer:])

    def _most(self) -> int:
        """So many calls the node takes at once, as far as is known."""
        most, since_s = self._limit
        return most if time.monotonic() - since_s < REMEMBERED_S else sys.maxsize

    def _request(self, calls: Sequence[Call]) -> list[Any]:
        """One HTTP request."""
        try:
            response: Any = self._provider.make_batch_request(
                [(RPCEndpoint(method), list(params)) for method, params in calls]
            )
        except (requests.RequestException, ValueError) as error:
            # Not `from error`: its words, and with them the URL, would be in every traceback.
            kind = BatchRefusedError if _too_much(error) else RpcUnavailableError
            raise kind(f"the RPC endpoint does not answer: {self._without_key(_why(error))}") from None
        except (AttributeError, TypeError, RecursionError) as error:  # web3 sorts them by their ids, whatever they are
            raise RpcUnavailableError(f"the RPC endpoint does not speak JSON-RPC: {type(error).__name__}") from None
        if _is_error(response) or (
            isinstance(response, list) and len(response) == 1 < len(calls) and _is_error(*response)
        ):
            raise BatchRefusedError(f"the RPC endpoint refused: {self._without_key(str(response))[:200]}")
        if not isinstance(response, list) or len(response) != len(calls):
            raise self._nonsense(response, f"{len(calls)} calls")
        return [self._answer(call, entry) for call, entry in zip(calls, response, strict=True)]

    def _answer(self, call: Call, entry: Any) -> Any:
        method, params = call
        error = entry.get("error") if isinstance(entry, dict) else None
        if error is None:
            if not isinstance(entry, dict) or "result" not in entry or not fits(method, params, entry["result"]):
                raise self._nonsense(entry, method)
            return entry["result"]
        if not isinstance(error, dict) or not isinstance(error.get("code"), int):
            raise self._nonsense(entry, method)
        data = error.get("data", "")
        if isinstance(data, dict):  # some nodes wrap it once more
            data = data.get("data", "")
        said = self._without_key(str(error.get("message", error)))
        data = data.removeprefix("Reverted ") if isinstance(data, str) else ""  # so says Parity
        return RpcError(error["code"], said, data if is_bytes(data) else "")

    def _nonsense(self, said: Any, asked: str) -> RpcUnavailableError:
        return RpcUnavailableError(f"the RPC endpoint answered {self._without_key(str(said))[:200]!r} to {asked}")


def _is_error(response: Any) -> bool:
    """One error for all calls: so answer Erigon and Nethermind; geth puts it into a list."""
    return isinstance(response, dict) and isinstance(response.get("error"), dict)


def _too_much(error: Exception) -> bool:
    """Whether a server may have refused a request for its size."""
    status = error.response.status_code if isinstance(error, requests.HTTPError) and error.response is not None else 0
    return 400 <= status < 500 and status not in PASSING


def _why(error: Exception) -> str:
    """What went wrong; requests would name the URL."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP status {error.response.status_code}"
    inner = error.args[0] if error.args else error
    return str(getattr(inner, "reason", None) or inner)


def require(answer: Any) -> Any:
    """An answer that is none of a failure. Raises RpcError for a call that reverted, which it will do again, and
    RpcUnavailableError for whatever else a node may refuse: it is busy, behind, or between two blocks.
    """
    if isinstance(answer, RpcError):
        if answer.reverted:
            raise answer
        raise RpcUnavailableError(f"the RPC endpoint refused: {answer}") from answer
    return answer
