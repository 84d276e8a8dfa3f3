"""Servers that receive messages about alarms over HTTP and SMTP, with the faults that a
test chooses.
"""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from devgrid.ports import free_port
from tests.support.http_servers import served

HANGS = 0  # in place of an HTTP status: the server does not answer
Fault = Callable[[], int]


class WebhookReceiver(ThreadingHTTPServer):
    """An HTTP server. It keeps each body that it receives, and answers with `statuses`
    in turn, then with 200.
    """

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.statuses: list[int] = []
        self.headers: dict[str, str] = {}  # of its next answers
        self.texts: dict[int, str] = {}  # of its answers, by their status
        self.on_message: Callable[[], None] = lambda: None  # before it answers
        self.got: list[dict[str, Any]] = []
        self.requests: list[tuple[str, dict[str, str]]] = []  # path and headers
        self.let_go = threading.Event()

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"


class _Handler(BaseHTTPRequestHandler):
    server: WebhookReceiver

    def do_POST(self) -> None:
        """Store the message, and answer with the status whose turn it is."""
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.requests.append((self.path, dict(self.headers)))
        server.got.append(body)
        server.on_message()
        status = server.statuses.pop(0) if server.statuses else 200
        if status == HANGS:
            server.let_go.wait()
            return
        self.send_response(status)
        for name, value in server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(
            server.texts.get(status, f"status {status} of {self.path}").encode()
        )

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def webhook_receiver(port: int = 0) -> Iterator[WebhookReceiver]:
    """A running HTTP server."""
    server = WebhookReceiver(port)
    with served(server, server.let_go):
        yield server


class MailReceiver:
    """The handler of an SMTP server. It keeps each mail, and refuses the receivers in
    `refused`.
    """

    def __init__(self) -> None:
        self.mails: list[Message] = []
        self.refused: set[str] = set()
        self.on_message: Callable[[], None] = lambda: None

    async def handle_RCPT(  # noqa: N802  aiosmtpd's name
        self,
        _server: SMTP,
        _session: Session,
        envelope: Envelope,
        address: str,
        _options: list[str],
    ) -> str:
        """Take or refuse a receiver."""
        if address in self.refused:
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802
        self, _server: SMTP, _session: Session, envelope: Envelope
    ) -> str:
        """Take the mail."""
        assert isinstance(envelope.content, bytes)
        self.mails.append(message_from_bytes(envelope.content))
        self.on_message()
        return "250 taken"


def _authenticate(
    server: SMTP, session: Session, envelope: Envelope, mechanism: str, login: Any
) -> AuthResult:
    right = isinstance(login, LoginPassword) and (login.login, login.password) == (
        b"fleet",
        b"correct-horse",
    )
    return AuthResult(success=right, handled=False)  # aiosmtpd itself answers 535


@contextmanager
def mail_receiver(
    handler: MailReceiver,
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    *,
    with_login: bool = False,
    tls_at_once: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """A running SMTP server; yields its address as host:port. With `tls`, it demands
    STARTTLS; with `tls_at_once`, it speaks TLS from the beginning.
    """
    options: dict[str, Any] = {"tls_context": tls, "require_starttls": tls is not None}
    if with_login:
        options |= {"authenticator": _authenticate, "auth_required": True}
    controller = Controller(
        handler,
        hostname="127.0.0.1",
        port=port or free_port(),
        ssl_context=tls_at_once,
        **options,
    )
    controller.start()
    try:
        yield f"127.0.0.1:{controller.port}"
    finally:
        controller.stop(no_assert=True)
