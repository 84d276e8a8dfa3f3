"""gRPC channels to the grid's services, with TLS by the settings."""

import re
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
DEFAULT_PORT = 443  # gRPC's own, of an address without a port
# gRPC's own forms of an address, such as dns:///host:port
_FORMS_OF_GRPC = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract):")
_HOST_AND_PORT = re.compile(r"(\[[^\[\]\s]+\]|[^\s/:\[\]]+)(?::([0-9]{1,5}))?")
MAX_PORT = 65535
# what is raised for a certificate that cannot be read, or names no host
UNUSABLE = (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)


class ServiceDownError(TransientError):
    """A service of the grid is unreachable; retry later."""


def may_be_reached(address: str) -> bool:
    """Whether gRPC can ever connect to the address: host:port, a host alone, or one of
    gRPC's own forms. A URL with http or https is none of these.
    """
    if _FORMS_OF_GRPC.match(address):
        return True
    found = _HOST_AND_PORT.fullmatch(address)
    return found is not None and 0 < int(found[2] or DEFAULT_PORT) <= MAX_PORT


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
        service does not show its certificate, or when the authority cannot be read; a
        retry helps.
        """
        if not self.tls:
            return grpc.insecure_channel(address, options=OPTIONS)
        if not self.verified:
            return _unverified(address)
        try:
            root = None if self.authority is None else self.authority.read_bytes()
        except OSError as error:
            raise ServiceDownError(f"SBATCH_CA cannot be read: {error}") from error
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(root), OPTIONS)


def _unverified(address: str) -> grpc.Channel:
    """Open a channel without verification. gRPC always checks certificates. So this
    uses the certificate that the service shows as the authority, and the name in it as
    the expected name.
    """
    try:
        pem = ssl.get_server_certificate(_host_and_port(address), timeout=TIMEOUT_S)
    except (OSError, ValueError) as error:
        # ValueError: the address is none, or has no name that DNS allows
        raise ServiceDownError(f"{address} shows no certificate: {error}") from error
    try:
        name = _name(x509.load_pem_x509_certificate(pem.encode()))
    except UNUSABLE as error:
        raise ServiceDownError(
            f"the certificate of {address} cannot be used: {error}"
        ) from error
    credentials = grpc.ssl_channel_credentials(pem.encode())
    return grpc.secure_channel(
        address, credentials, [*OPTIONS, ("grpc.ssl_target_name_override", name)]
    )


def _host_and_port(address: str) -> tuple[str, int]:
    """Return both parts of an address. Raises ValueError."""
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None:
        raise ValueError("expected host:port")
    return found[1].strip("[]"), int(found[2] or DEFAULT_PORT)


def _name(certificate: x509.Certificate) -> str:
    """Return the first name of a certificate. Raises one of UNUSABLE."""
    try:
        names = certificate.extensions.get_extension_for_oid(
            ExtensionOID.SUBJECT_ALTERNATIVE_NAME
        ).value
        return str(next(iter(names)).value)  # type: ignore[call-overload]  # a SubjectAlternativeName is iterable
    except (x509.ExtensionNotFound, StopIteration):
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if not common:
            raise ValueError("it names no host") from None
        return str(common[0].value)
