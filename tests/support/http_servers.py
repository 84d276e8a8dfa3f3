"""HTTP servers of the tests' own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

POLL_S = 0.02


class Quiet:
    """What a handler of requests inherits first, so that it prints none."""

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server on a free port of this machine; its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(POLL_S,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def served(server: ThreadingHTTPServer, let_go: threading.Event) -> Iterator[None]:
    """Inside this, the server answers. At the end `let_go` is set, so that requests that
    wait for it end before the server is closed.
    """
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        let_go.set()
        server.shutdown()
        server.server_close()
        thread.join()
