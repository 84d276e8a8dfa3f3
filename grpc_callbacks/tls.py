"""The certificate of the gRPC process. The process checks it before it listens, because
grpcio reports no error for a wrong one, and reads it again when its files change.
"""

import threading
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

import grpc
import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from supervisor_tasks.config.settings import Settings, SettingsError

log = structlog.get_logger()

Stamp = tuple[tuple[int, int, int, int], ...]


def credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """Return the server's TLS credentials; None without TLS_ENABLE. Raises
    SettingsError; a retry does not help.
    """
    if not settings.tls_enable:
        return None
    return Certificate(settings).credentials()


class Certificate:
    """The current content of TLS_CERT and TLS_KEY."""

    def __init__(self, settings: Settings) -> None:
        """Read the files. Raises SettingsError."""
        self._files = {"TLS_KEY": settings.tls_key, "TLS_CERT": settings.tls_cert}
        self._public_address = settings.public_address
        self._lock = threading.Lock()  # gRPC calls `_changed` from its own threads
        self._stamp = self._stamp_now()  # of the files that were read
        # of the files that the log last called wrong
        self._not_taken: Stamp | None = None
        self._pems = self._read()
        self._compare_names()

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for gRPC's server, which asks before each handshake
        whether there is a new certificate.
        """
        # grpcio's types do not allow None, which it may return
        changed: Any = self._changed
        return grpc.dynamic_ssl_server_credentials(self._configuration(), changed)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(self._pems["TLS_KEY"], self._pems["TLS_CERT"])]
        )

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new certificate; None while it is the same, or while the files
        cannot be read or do not fit each other. Each handshake then tries again.
        """
        with self._lock:
            stamp = self._stamp_now()
            if stamp == self._stamp:
                return None
            try:
                self._pems = self._read()
            except SettingsError as error:
                if stamp != self._not_taken:
                    log.warning(
                        "certificate_rejected",
                        error=str(error),
                        help="the server still shows the one before",
                    )
                self._not_taken = stamp
                return None
            self._stamp = stamp
            log.info("certificate_loaded", names=names_of(self._pems["TLS_CERT"]))
            self._compare_names()
            return self._configuration()

    def _stamp_now(self) -> Stamp:
        """Return what changes with the files: modification time, time of the last
        change, inode and size of each. A new owner or mode moves the second time alone.
        """
        stamps = list[tuple[int, int, int, int]]()
        for file in filter(None, self._files.values()):
            try:
                found = file.stat()
            except OSError:
                stamps.append((0, 0, 0, 0))
            else:
                times_ns = found.st_mtime_ns, found.st_ctime_ns
                stamps.append((*times_ns, found.st_ino, found.st_size))
        return tuple(stamps)

    def _read(self) -> dict[str, bytes]:
        pems, lines = dict[str, bytes](), list[str]()
        for name, file in self._files.items():
            if file is None:
                lines.append(
                    f"{name}: found nothing; expected a PEM file, because TLS_ENABLE is true"
                )
                continue
            try:
                pems[name] = file.read_bytes()
            except OSError as error:
                lines.append(
                    f"{name}: found {str(file)!r}; expected a file that can be read ({error})"
                )
        if not lines:
            for name, expected in _misfits(pems["TLS_KEY"], pems["TLS_CERT"]):
                lines.append(
                    f"{name}: found {str(self._files[name])!r}; expected {expected}"
                )
        if lines:
            raise SettingsError(lines)
        return pems

    def _compare_names(self) -> None:
        """Warn if the certificate does not name our host: the upstream plugins check
        the name, and then send nothing.
        """
        host = self._public_address.rpartition(":")[0]
        names = names_of(self._pems["TLS_CERT"])
        if not is_for(host, names):
            log.warning(
                "certificate_of_another_host",
                public_address=self._public_address,
                certificate_names=names,
                help="callers that check the name reject the connection: set PUBLIC_ADDRESS, or use a certificate of its host",
            )


def names_of(certificate: bytes) -> list[str]:
    """Return the hosts and addresses in a certificate's subjectAltName, the only field
    that callers check.
    """
    try:
        extensions = x509.load_pem_x509_certificates(certificate)[0].extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return [
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    ]


def is_for(host: str, names: Sequence[str]) -> bool:
    """Return whether a certificate with these names is valid for the host. A wildcard
    stands for one label.
    """
    host = host.strip("[]").rstrip(".").lower()
    try:
        return str(ip_address(host)) in names
    except ValueError:
        wild = f"*.{host.partition('.')[2]}"
        return any(name.lower() in (host, wild) for name in names)


def _misfits(key: bytes, certificate: bytes) -> list[tuple[str, str]]:
    """Return the settings that are wrong (TLS_KEY, TLS_CERT or both), each with what
    was expected; empty if both fit.
    """
    of_key, of_certificate = _public_half(key), _public_key(certificate)
    misfits = list[tuple[str, str]]()
    if not of_key:
        misfits.append(("TLS_KEY", "a private key as PEM, without a passphrase"))
    if not of_certificate:
        misfits.append(("TLS_CERT", "certificates as PEM, the server's own first"))
    if not misfits and of_key != of_certificate:
        misfits.append(
            ("TLS_CERT", "the certificate of the key in TLS_KEY, before all others")
        )
    return misfits


def _public_half(key: bytes) -> PublicKeyTypes | None:
    try:
        return serialization.load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # TypeError: the key has a passphrase
        return None


def _public_key(certificate: bytes) -> PublicKeyTypes | None:
    try:
        return x509.load_pem_x509_certificates(certificate)[0].public_key()
    except (ValueError, UnsupportedAlgorithm):
        return None
