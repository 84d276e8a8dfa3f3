"""Ends the process when it does not answer itself, so that systemd, compose or
Kubernetes starts it again.
"""

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grpc_callbacks.connection_acceptor import PREFACE
from grpc_callbacks.connections import Address, address_of

log = structlog.get_logger()

# the time for an answer, and from one try to the next after one that failed
TRY_S = 2.0
CALM_S = 5.0  # from one try to the next after one that was answered
# failures in a row: a process that was stopped for a while and continues must not end
MAX_TRIES = 5
LOG_S = 1.0
EXIT_STATUS = 70  # EX_SOFTWARE
SETTINGS_FRAME = bytes.fromhex("000000040000000000")


class SelfCheck:
    """Calls `ask` every CALM_S in its own thread, and every `try_s` after a failure.
    `ask` raises when there is no answer.
    """

    def __init__(
        self,
        ask: Callable[[], None],
        end: Callable[[], None] | None = None,
        try_s: float = TRY_S,
    ) -> None:
        self._ask = ask
        self._end = end or _end
        self._try_s = try_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._check_until_stopped, name="self-check", daemon=True
        )

    def start(self) -> None:
        """Start the checks."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the checks, because the process ends in the normal way."""
        self._stopping.set()

    def _check_until_stopped(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            began_s = time.monotonic()
            error = self._failure()
            if error:
                failures, period_s = failures + 1, self._try_s
            else:
                failures, period_s = 0, CALM_S
            if failures >= MAX_TRIES and not self._stopping.is_set():
                _log_stuck(
                    f"the process does not answer itself for {MAX_TRIES * self._try_s:g} s and ends ({error})"
                )
                self._end()
                return
            self._stopping.wait(max(0.0, began_s + period_s - time.monotonic()))

    def _failure(self) -> str:
        """Return why there was no answer; empty when there was one."""
        try:
            self._ask()
        except OSError as error:
            return repr(error)
        except grpc.RpcError as error:
            return str(error.code())
        return ""


def _log_stuck(error: str) -> None:
    """Log in another thread, for LOG_S at most: the process may be stuck because its
    log takes no more lines.
    """
    logging = threading.Thread(
        target=lambda: log.critical("callbacks_stuck", error=error), daemon=True
    )
    logging.start()
    logging.join(LOG_S)


def _end() -> None:
    # a normal end can wait for ever, for something that another thread holds
    os._exit(EXIT_STATUS)


class OwnPort:
    """Asks this process twice: as a caller, until gRPC sends its first byte; and with a
    Check to the services.

    The Check goes over a Unix socket: without the certificate's authority this process
    cannot verify its certificate. While it asks as a caller, `own` has its address and
    port: a peer of the same address that opens many connections must not end it.
    """

    def __init__(
        self,
        host: str,
        port: int,
        inner: str,
        own: set[tuple[Address, int]],
        *,
        tls: bool,
    ) -> None:
        self._where = host, port
        self._own = own
        self._context = _unverified() if tls else None
        self._health: Any = health_pb2_grpc.HealthStub(
            grpc.insecure_channel(f"unix:{inner}")
        )

    def ask(self) -> None:
        """Ask both questions. Raises OSError or RpcError when one has no answer within
        TRY_S; the next try may have one.
        """
        with socket.create_connection(self._where, TRY_S) as connection:
            host, port = connection.getsockname()[:2]
            caller = address_of(host), port
            self._own.add(caller)
            try:
                self._ask_over(connection)
            finally:
                self._own.remove(caller)
        self._health.Check(health_pb2.HealthCheckRequest(), timeout=TRY_S)

    def _ask_over(self, connection: socket.socket) -> None:
        if self._context is None:
            _await_first_byte(connection)
            return
        with self._context.wrap_socket(connection) as encrypted:
            _await_first_byte(encrypted)


def _await_first_byte(connection: socket.socket) -> None:
    connection.sendall(PREFACE + SETTINGS_FRAME)
    if not connection.recv(1):
        raise ConnectionResetError("the connection was closed")


def _unverified() -> ssl.SSLContext:
    """Return a context that verifies no certificate, because the process connects to
    itself.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context
