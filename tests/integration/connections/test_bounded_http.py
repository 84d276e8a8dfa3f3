"""The session for many requests to one address: what it prepares once is what each
request needs.
"""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from supervisor_tasks.chain.rpc.client import Rpc
from supervisor_tasks.connections.bounded_http import NotAcceptedError, prepared_session

ANSWER = b'[{"jsonrpc": "2.0", "id": 0, "result": "0x1"}]'
REDIRECT = 307


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server: Server = self.server  # type: ignore[assignment]
        server.requests.append((self.path, {**self.headers}, body))
        self.send_response(server.status)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        self.requests = list[tuple[str, dict[str, str], bytes]]()
        self.status = 200
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_prepared_session__second_request__has_its_own_body_and_the_same_headers(
    server: Server,
) -> None:
    with prepared_session(10.0) as http:
        for body in (b"short", b"a longer body"):
            http.post(
                f"http://us:er@{server.url}/rpc",
                data=body,
                headers={"X-Of-Ours": "yes"},
                timeout=10.0,
            )
    (_, first, short), (_, second, longer) = server.requests
    assert (short, longer) == (b"short", b"a longer body")
    assert (first.pop("Content-Length"), second.pop("Content-Length")) == ("5", "13")
    assert first == second
    assert first["X-Of-Ours"] == "yes"
    assert first["Authorization"] == "Basic dXM6ZXI="
    assert first["Accept-Encoding"] == "identity"


def test_prepared_session__proxy_in_the_environment__is_used(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://{server.url}")
    assert Rpc.at("http://node.invalid/rpc").call("eth_blockNumber") == "0x1"
    assert server.requests[0][0] == "http://node.invalid/rpc"


def test_prepared_session__redirect__is_not_followed(server: Server) -> None:
    server.status = REDIRECT
    with prepared_session(10.0) as http:
        for _ in range(2):
            with pytest.raises(NotAcceptedError, match="leads elsewhere"):
                http.post(
                    f"http://{server.url}/rpc", data=b"{}", headers={}, timeout=10.0
                )
    assert [path for path, *_ in server.requests] == ["/rpc", "/rpc"]
