"""The certificate that the gRPC process shows, checked before it listens: of a wrong one grpcio says nothing."""

from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from supervisor_tasks.settings import Settings, SettingsError


def credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """What to serve with; None without TLS_ENABLE. Raises SettingsError."""
    if not settings.tls_enable:
        return None
    files = {"TLS_KEY": settings.tls_key, "TLS_CERT": settings.tls_cert}
    pems, lines = dict[str, bytes](), list[str]()
    for name, file in files.items():
        if file is None:
            lines.append(f"{name}: found nothing; expected a PEM file, because TLS_ENABLE is true")
            continue
        try:
            pems[name] = file.read_bytes()
        except OSError as error:
            lines.append(f"{name}: found {str(file)!r}; expected a file that can be read ({error})")
    lines = lines or [_line(name, files[name], why) for name, why in _unfit(pems["TLS_KEY"], pems["TLS_CERT"])]
    if lines:
        raise SettingsError(lines)
    return grpc.ssl_server_credentials([(pems["TLS_KEY"], pems["TLS_CERT"])])


def _line(name: str, file: Path | None, expected: str) -> str:
    return f"{name}: found {str(file)!r}; expected {expected}"


def _unfit(key: bytes, certificate: bytes) -> list[tuple[str, str]]:
    """Which of the two cannot be worked with, and what was expected."""
    ours, shown = _public_half(key), _public_key(certificate)
    wrong = [] if ours else [("TLS_KEY", "a private key as PEM, without a passphrase")]
    wrong += [] if shown else [("TLS_CERT", "certificates as PEM, the server's own first")]
    if ours and shown and ours != shown:
        wrong.append(("TLS_CERT", "the certificate of the key in TLS_KEY, before all others"))
    return wrong


def _public_half(key: bytes) -> PublicKeyTypes | None:
    try:
        return serialization.load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):  # a TypeError: it has a passphrase
        return None


def _public_key(certificate: bytes) -> PublicKeyTypes | None:
    try:
        return x509.load_pem_x509_certificates(certificate)[0].public_key()
    except (ValueError, UnsupportedAlgorithm):
        return None
