"""gRPC channels to the grid's services, with TLS by the settings."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.x509.oid import ExtensionOID, NameOID

from supervisor_tasks.errors import TransientError

TIMEOUT_S = 5.0
# of an answer, such as a script; SLURM accepts no longer scripts (max_script_size)
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# gRPC waits up to two minutes between two tries to connect, and channels to one address
# share that wait. With these options, connections work again within seconds after an
# outage.
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # really the longest time of one attempt to connect
    ("grpc.min_reconnect_backoff_ms", 5_000),
]


class ServiceDownError(TransientError):
    """A service of the grid is unreachable; retry later."""


@dataclass(frozen=True, slots=True)
class Channels:
    """The connection settings for the services. Without `authority`, the system's
    authorities are trusted. Without `verified`, any server is trusted.
    """

    tls: bool = True
    authority: Path | None = None
    verified: bool = True

    def open(self, address: str) -> grpc.Channel:
        """Open a channel to host:port. Raises ServiceDownError when an unverified
        service does not show its certificate.
        """
        if not self.tls:
            return grpc.insecure_channel(address, options=OPTIONS)
        if not self.verified:
            return _unverified(address)
        root = None if self.authority is None else self.authority.read_bytes()
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(root), OPTIONS)


def _unverified(address: str) -> grpc.Channel:
    """Open a channel without verification. gRPC always checks certificates. So this
    uses the certificate that the service shows as the authority, and the name in it as
    the expected name.
    """
    host, _, port = address.rpartition(":")
    try:
        certificate = ssl.get_server_certificate(
            (host.strip("[]"), int(port)), timeout=TIMEOUT_S
        )
    except OSError as error:
        raise ServiceDownError(f"{address} shows no certificate: {error}") from error
    pem = certificate.encode()
    name = _name(x509.load_pem_x509_certificate(pem))
    credentials = grpc.ssl_channel_credentials(pem)
    return grpc.secure_channel(
        address, credentials, [*OPTIONS, ("grpc.ssl_target_name_override", name)]
    )


def _name(certificate: x509.Certificate) -> str:
    try:
        names = certificate.extensions.get_extension_for_oid(
            ExtensionOID.SUBJECT_ALTERNATIVE_NAME
        ).value
        return str(next(iter(names)).value)  # type: ignore[call-overload]  # a SubjectAlternativeName is iterable
    except (x509.ExtensionNotFound, StopIteration):
        return str(
            certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        )
