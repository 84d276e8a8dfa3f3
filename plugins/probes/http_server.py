"""A small HTTP server for probes and scrapes: a few pages, no state. It keeps nothing
that a caller sends.

A caller has REQUEST_S for its whole request of at most REQUEST_BYTES. At most
MAX_CONNECTIONS are open at once; the server closes later ones. A page must not wait for
anything: it is written from what the process already knows.
"""

import io
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import Any

MAX_CONNECTIONS = 16
REQUEST_BYTES = 4096
REQUEST_S = 2.0
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
ALL_IPV6 = "::"


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT


Pages = Mapping[str, Callable[[], Page]]


class ProbeServer(ThreadingHTTPServer):
    """Answers GET and HEAD at host:port, on threads that end with the process; without a
    host, at all addresses of the machine. Port 0 takes any free one (`server_port`).
    `log_failure` is called with the caller's address inside the handler of an error of
    a page. Raises OSError if the address is not available, and ValueError if it is
    none.
    """

    daemon_threads = True
    request_queue_size = 64
    allow_reuse_address = True

    def __init__(
        self, address: str, pages: Pages, log_failure: Callable[[str], object]
    ) -> None:
        host, _, port = address.rpartition(":")
        host = host.strip("[]") or _all_addresses()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.pages = pages
        self._log_failure = log_failure
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, int(port)), _Handler)

    def start(self) -> None:
        """Start to serve."""
        threading.Thread(target=self.serve_forever, name="probes", daemon=True).start()

    def stop(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()

    def server_bind(self) -> None:
        """Bind without the look-up of this machine's name, which can take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.server_address[0] == ALL_IPV6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = (
            str(self.server_address[0]),
            int(self.server_address[1]),
        )

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread, or close it if MAX_CONNECTIONS are open
        already.
        """
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread is available
            self._free.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of a page. A caller that goes away is no error."""
        del request
        self._log_failure(client_address[0])


def _all_addresses() -> str:
    """The host that means all addresses of the machine. A pod may have IPv6 alone."""
    if socket.has_dualstack_ipv6():
        return ALL_IPV6
    return "0.0.0.0"  # noqa: S104


class _Handler(BaseHTTPRequestHandler):
    server: ProbeServer
    server_version = "supervisor"
    sys_version = ""
    error_content_type = TEXT
    error_message_format = "%(code)d %(message)s\n"

    def __init__(self, request: Any, client_address: Any, server: BaseServer) -> None:
        with suppress(OSError):  # the caller has gone, or took too long
            super().__init__(request, client_address, server)

    def setup(self) -> None:
        """Read the head of the request within its limits of time and length, before any
        of it is parsed.
        """
        super().setup()
        self.rfile = io.BufferedReader(io.BytesIO(_head_of(self.connection)))

    def do_GET(self) -> None:
        """Answer with a page."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer without the body."""
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        write = self.server.pages.get(self.path.partition("?")[0])
        page = Page(b"not found\n", HTTPStatus.NOT_FOUND) if write is None else write()
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(page.body)

    def log_message(self, *_: object) -> None:
        """Log nothing: probes come every few seconds, and what a caller sends must stay
        out of the log.
        """


def _head_of(connection: socket.socket) -> bytes:
    """Return the request up to its empty line. Raises TimeoutError, or ConnectionError
    for one that is too long or not whole.
    """
    head, until_s = b"", time.monotonic() + REQUEST_S
    while b"\r\n\r\n" not in head and b"\n\n" not in head:
        connection.settimeout(max(until_s - time.monotonic(), 0.001))
        part = connection.recv(REQUEST_BYTES + 1 - len(head))
        head += part
        if not part or len(head) > REQUEST_BYTES:
            raise ConnectionAbortedError("the request is not whole, or too long")
    connection.settimeout(REQUEST_S)
    return head
