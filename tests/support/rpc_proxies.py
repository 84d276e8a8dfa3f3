"""Servers in front of a chain's node, which answer some of what it is asked themselves."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import requests

from devgrid.chain.chain import Chain
from devgrid.machine import deadline
from supervisor_tasks.wallet.raw_transaction import TransactionFields, decode

Call = dict[str, Any]


@contextmanager
def in_front_of(
    chain: Chain, answer: Callable[[list[Call]], tuple[int, Any] | None]
) -> Iterator[tuple[list[str], str]]:
    """A node of the chain for which a test may answer: an HTTP status and JSON; and the methods that it is asked for."""
    asked: list[str] = []

    class Front(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            calls = json.loads(body)
            asked.extend(call["method"] for call in calls)
            status, said = answer(calls) or (200, really(chain, calls))
            whole = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(whole)))
            self.end_headers()
            self.wfile.write(whole)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Front) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield asked, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def really(chain: Chain, calls: list[Call]) -> list[Any]:
    """What the chain's own node answers."""
    answers: list[Any] = requests.post(chain.rpc_url, json=calls, timeout=deadline(60)).json()
    return answers


@contextmanager
def particular(
    chain: Chain, objection: Callable[[TransactionFields], str | None], said: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """A node of the chain that refuses signed transactions in the words of an objection, and says that to those methods."""

    def answer(calls: list[Call]) -> tuple[int, Any]:
        own = [entry for entry in map(own_answer, calls) if entry is not None]
        answered = {entry["id"] for entry in own}
        rest = [call for call in calls if call["id"] not in answered]
        return 200, own + (really(chain, rest) if rest else [])

    def own_answer(call: Call) -> dict[str, Any] | None:
        if said is not None and call["method"] in said:
            return {"jsonrpc": "2.0", "id": call["id"], "result": said[call["method"]]}
        if call["method"] != "eth_sendRawTransaction":
            return None
        words = objection(decode(bytes.fromhex(call["params"][0][2:])))
        return None if words is None else {**call, "error": {"code": -32000, "message": words}}

    with in_front_of(chain, answer) as (_, url):
        yield url
