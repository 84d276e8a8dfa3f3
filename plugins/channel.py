"""The channel to the supervisor: over TLS, or in plain text on this machine alone; with the site's key, each call is proven."""

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
    # gRPC's own waits grow to two minutes: too long for a supervisor that comes back after an outage.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # in truth how long one attempt to connect may take
    # A connection that the network dropped without a word would stay until the kernel gives it up, after a quarter of an hour.
    # It is asked for while a call waits; the server lets that pass (grpc_callbacks/server.py).
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),  # for the kernel (TCP_USER_TIMEOUT)
    ("grpc.http2.ping_timeout_ms", 5_000),  # and for gRPC, which by itself waits a minute, whatever the line above says
)


class PlainTextError(ValueError):
    """Others on the way could read and change what is said; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Supervisor:
    """Where the supervisor is, and how it is spoken with. Without an authority there is no TLS."""

    address: str
    authority: Path | None = None
    key_file: Path | None = None
    plain_text_beyond_loopback: bool = False


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options from which `supervisor_of` makes a Supervisor."""
    parser.add_argument("--supervisor", required=True, metavar="HOST:PORT")
    parser.add_argument("--ca", type=Path, help="certificate authorities of the supervisor; without it, no TLS")
    parser.add_argument("--key", type=Path, help="file of the site's CALLBACK_KEY, to prove each call with")
    parser.add_argument(
        "--plain-text-beyond-loopback",
        action="store_true",
        help="speak without TLS to another machine: those on the way can read and change what is said",
    )


def supervisor_of(options: argparse.Namespace) -> Supervisor:
    """What the options say."""
    return Supervisor(options.supervisor, options.ca, options.key, options.plain_text_beyond_loopback)


def open_channel(supervisor: Supervisor) -> grpc.Channel:
    """A channel to the supervisor. Raises PlainTextError, proof.KeyFileError, or OSError where the authorities' file cannot be
    read.
    """
    channel = _encrypted(supervisor) if supervisor.authority else _plain(supervisor)
    if supervisor.key_file is None:
        return channel
    return grpc.intercept_channel(channel, _Proving(proof.read_key(supervisor.key_file)))


def _encrypted(supervisor: Supervisor) -> grpc.Channel:
    authorities = Path(supervisor.authority or "").read_bytes()
    return grpc.secure_channel(supervisor.address, grpc.ssl_channel_credentials(authorities), options=OPTIONS)


def _plain(supervisor: Supervisor) -> grpc.Channel:
    if not supervisor.plain_text_beyond_loopback and not is_this_machine(supervisor.address):
        raise PlainTextError(
            f"--supervisor: found {supervisor.address!r} without --ca; expected --ca FILE, because machines on the way could "
            "read and change what is said, or --plain-text-beyond-loopback, if they may"
        )
    return grpc.insecure_channel(supervisor.address, options=OPTIONS)


def is_this_machine(address: str) -> bool:
    """Whether all that host:port stands for is on this machine's loopback."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ip_address(where[0]).is_loopback for *_, where in found)


class _Details(NamedTuple):
    """A call with more metadata; gRPC wants these names."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Proving(grpc.UnaryUnaryClientInterceptor):
    """Adds the proof to each call, also when it is tried again: the time in it is that of the try."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request: Any
    ) -> Any:
        """Hand the call on, proven."""
        call = client_call_details
        entries = proof.metadata(self._key, call.method, request.SerializeToString())
        metadata = [*(call.metadata or ()), *entries]
        details = _Details(call.method, call.timeout, metadata, call.credentials, call.wait_for_ready, call.compression)
        return continuation(details, request)
