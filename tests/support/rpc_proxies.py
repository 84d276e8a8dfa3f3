"""Proxies of a chain's node that answer some requests themselves."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import requests

from devgrid.chain.chain import Chain
from devgrid.machine import deadline
from supervisor_tasks.wallet.raw_transaction import TransactionFields, decode
from tests.support.http_servers import Quiet, http_server

Call = dict[str, Any]


@contextmanager
def node_proxy(
    chain: Chain, answer: Callable[[list[Call]], tuple[int, Any] | None]
) -> Iterator[tuple[list[str], str]]:
    """A node of the chain for which a test may answer, with an HTTP status and JSON.
    Yields the list of the methods that it was called with, and its URL.
    """
    methods: list[str] = []

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            calls = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            methods.extend(call["method"] for call in calls)
            status, answers = answer(calls) or (200, real_answers(chain, calls))
            body = json.dumps(answers).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http_server(Handler) as url:
        yield methods, url


def real_answers(chain: Chain, calls: list[Call]) -> list[Any]:
    """The answers of the chain's own node."""
    answers: list[Any] = requests.post(
        chain.rpc_url, json=calls, timeout=deadline(60)
    ).json()
    return answers


@contextmanager
def rejecting_node(
    chain: Chain,
    objection: Callable[[TransactionFields], str | None],
    results: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """A node of the chain that refuses a signed transaction with the text of
    `objection`, if that returns one. It answers the methods in `results` with these
    results.
    """

    def answer(calls: list[Call]) -> tuple[int, Any]:
        own = [entry for entry in map(own_answer, calls) if entry is not None]
        answered = {entry["id"] for entry in own}
        rest = [call for call in calls if call["id"] not in answered]
        return 200, own + (real_answers(chain, rest) if rest else [])

    def own_answer(call: Call) -> dict[str, Any] | None:
        if results is not None and call["method"] in results:
            return {
                "jsonrpc": "2.0",
                "id": call["id"],
                "result": results[call["method"]],
            }
        if call["method"] != "eth_sendRawTransaction":
            return None
        message = objection(decode(bytes.fromhex(call["params"][0][2:])))
        return (
            None
            if message is None
            else {**call, "error": {"code": -32000, "message": message}}
        )

    with node_proxy(chain, answer) as (_, url):
        yield url
