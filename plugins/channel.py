"""The gRPC channel to the supervisor: over TLS, or in plain text on this machine only.
Each call names this machine; with the site's key it carries a proof.
"""

import argparse
import socket
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from plugins import proof

OPTIONS = (
    # By default gRPC's waits grow to two minutes: too long for a supervisor that comes
    # back after an outage.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # despite its name: the longest time for one attempt to connect
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # A proxy of the environment (http_proxy) would get calls to this machine, too.
    ("grpc.enable_http_proxy", 0),
    # Without pings, a connection that the network has dropped silently stays until the
    # kernel closes it after a quarter of an hour. gRPC pings while a call waits; the
    # server allows that (grpc_callbacks/server.py).
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),  # for the kernel (TCP_USER_TIMEOUT)
    # for gRPC, which otherwise waits a minute despite the line above
    ("grpc.http2.ping_timeout_ms", 5_000),
)


class PlainTextError(ValueError):
    """Without TLS, machines on the way could read and change the calls; the message
    names the options that help.
    """


@dataclass(frozen=True, slots=True)
class SupervisorTarget:
    """Where the supervisor is, and how to reach it. Without an authority there is no
    TLS.
    """

    address: str
    authority: Path | None = None
    key_file: Path | None = None
    plain_text_beyond_loopback: bool = False


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `supervisor_of` reads."""
    parser.add_argument("--supervisor", required=True, metavar="HOST:PORT")
    parser.add_argument(
        "--ca",
        type=Path,
        help="certificate authorities of the supervisor; without it, no TLS",
    )
    parser.add_argument(
        "--key",
        type=Path,
        help="file of the site's CALLBACK_KEY, to prove each call with",
    )
    parser.add_argument(
        "--plain-text-beyond-loopback",
        action="store_true",
        help="call another machine without TLS: machines on the way can read and change the calls",
    )


def supervisor_of(options: argparse.Namespace) -> SupervisorTarget:
    """Make a SupervisorTarget from the options of `add_options`."""
    return SupervisorTarget(
        options.supervisor, options.ca, options.key, options.plain_text_beyond_loopback
    )


def open_channel(supervisor: SupervisorTarget) -> grpc.Channel:
    """Open a channel to the supervisor.

    Raises PlainTextError, proof.KeyFileError, or OSError when the authorities' file is
    unreadable; a retry does not help.
    """
    if supervisor.authority is None:
        channel = _plain(supervisor)
    else:
        channel = _encrypted(supervisor.address, supervisor.authority)
    key = None
    if supervisor.key_file is not None:
        key = proof.read_key(supervisor.key_file)
    return grpc.intercept_channel(channel, _Proving(key))


def _encrypted(address: str, authority: Path) -> grpc.Channel:
    authorities = authority.read_bytes()
    return grpc.secure_channel(
        address, grpc.ssl_channel_credentials(authorities), options=OPTIONS
    )


def _plain(supervisor: SupervisorTarget) -> grpc.Channel:
    if not supervisor.plain_text_beyond_loopback and not is_this_machine(
        supervisor.address
    ):
        raise PlainTextError(
            f"--supervisor: found {supervisor.address!r} without --ca; expected --ca FILE, because machines on the way could "
            "read and change the calls, or --plain-text-beyond-loopback, if they may"
        )
    return grpc.insecure_channel(supervisor.address, options=OPTIONS)


def is_this_machine(address: str) -> bool:
    """Return whether all addresses of host:port are on this machine's loopback."""
    host, _, port = address.rpartition(":")
    try:
        resolved = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(
        ip_address(socket_address[0]).is_loopback for *_, socket_address in resolved
    )


class _Details(NamedTuple):
    """A call with more metadata; gRPC requires these field names."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Proving(grpc.UnaryUnaryClientInterceptor):
    """Adds this machine's name to each call, and with a key a proof; a retry gets a new
    one with the current time.
    """

    def __init__(self, key: bytes | None) -> None:
        self._key = key

    def intercept_unary_unary(
        self,
        continuation: Callable[[Any, Any], Any],
        client_call_details: Any,
        request: Any,
    ) -> Any:
        """Continue the call with the name and the proof in its metadata."""
        call = client_call_details
        entries = proof.metadata(self._key, call.method, request.SerializeToString())
        metadata = [*(call.metadata or ()), *entries]
        details = _Details(
            call.method,
            call.timeout,
            metadata,
            call.credentials,
            call.wait_for_ready,
            call.compression,
        )
        return continuation(details, request)
