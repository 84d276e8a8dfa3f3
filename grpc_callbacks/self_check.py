"""A process that does not answer itself ends, so that its supervisor (systemd, compose, Kubernetes) starts it again."""

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

from grpc_callbacks.front import PREFACE

log = structlog.get_logger()

TRY_S = 2.0
TRIES = 5  # one after another: a process that was stopped for a while goes on
TELL_S = 1.0
EXIT_STATUS = 70  # EX_SOFTWARE
SETTINGS_FRAME = bytes.fromhex("000000040000000000")


class SelfCheck:
    """A thread of its own asks every TRY_S, whatever the other threads do. `ask` raises where there is no answer."""

    def __init__(self, ask: Callable[[], None], end: Callable[[], None] | None = None, try_s: float = TRY_S) -> None:
        self._ask = ask
        self._end = end or _end
        self._try_s = try_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="self-check", daemon=True)

    def start(self) -> None:
        """Ask from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more: the process ends in order."""
        self._stopping.set()

    def _go_on(self) -> None:
        failed = 0
        while not self._stopping.is_set():
            began_s = time.monotonic()
            why = self._failure()
            failed = failed + 1 if why else 0
            if failed >= TRIES and not self._stopping.is_set():
                self._tell(f"the process does not answer itself for {TRIES * self._try_s:g} s and ends ({why})")
                self._end()
                return
            self._stopping.wait(max(0.0, began_s + self._try_s - time.monotonic()))

    def _tell(self, error: str) -> None:
        """In a thread of its own: the process may be stuck because its log takes no more lines."""
        telling = threading.Thread(target=log.critical, args=("callbacks_stuck",), kwargs={"error": error}, daemon=True)
        telling.start()
        telling.join(TELL_S)

    def _failure(self) -> str:
        """Why there was no answer; empty when there was one."""
        try:
            self._ask()
        except (OSError, grpc.RpcError) as error:
            return repr(error) if isinstance(error, OSError) else str(error.code())
        return ""


def _end() -> None:
    os._exit(EXIT_STATUS)  # other threads may hold what an orderly end waits for


class OwnPort:
    """The questions: a connection as a caller makes it, up to gRPC's first word; and a Check, which the services answer.
    The second one goes over a Unix socket: this process cannot verify its own certificate without its authority.
    """

    def __init__(self, host: str, port: int, inner: str, *, tls: bool) -> None:
        self._where = host, port
        self._tls = tls
        self._health: Any = health_pb2_grpc.HealthStub(grpc.insecure_channel(f"unix:{inner}"))

    def ask(self) -> None:
        """Raises OSError or RpcError where there is no answer within TRY_S."""
        with socket.create_connection(self._where, TRY_S) as connection:
            if self._tls:
                with _unverified().wrap_socket(connection) as encrypted:
                    _await_first_word(encrypted)
            else:
                _await_first_word(connection)
        self._health.Check(health_pb2.HealthCheckRequest(), timeout=TRY_S)


def _await_first_word(connection: socket.socket) -> None:
    connection.sendall(PREFACE + SETTINGS_FRAME)
    if not connection.recv(1):
        raise ConnectionResetError("the connection was closed")


def _unverified() -> ssl.SSLContext:
    """For a process that speaks with itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context
