"""Certificates of a private authority, for this machine."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# this machine, as podman's containers know it
HOST_OF_CONTAINERS = "host.containers.internal"
VALID = datetime.timedelta(days=30)
# Python 3.13 accepts an authority only with a key usage, and a certificate only with an
# authority key identifier.
_SIGNS = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: the authority that callers trust, and the server's certificate and
    key.
    """

    ca: Path
    cert: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and a server certificate for this machine; the key is closed to
    others. Those that a server already works with stay: slapd has read them when the
    grid's other servers are started.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = Certificates(
        folder / "ca.pem", folder / "server.pem", folder / "server.key"
    )
    if files.key.exists():
        return files
    ca_key = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    authority = _builder("devgrid", "devgrid", ca_key.public_key())
    authority = authority.add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    authority = authority.add_extension(_SIGNS, critical=True)
    own = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    authority = authority.add_extension(own, critical=False)
    server = _builder("localhost", "devgrid", key.public_key())
    hosts = [x509.DNSName("localhost"), x509.DNSName(HOST_OF_CONTAINERS)]
    names = [*hosts, x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = server.add_extension(x509.SubjectAlternativeName(names), critical=False)
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
    server = server.add_extension(signed_by, critical=False)
    files.ca.write_bytes(_pem(authority.sign(ca_key, hashes.SHA256())))
    files.cert.write_bytes(_pem(server.sign(ca_key, hashes.SHA256())))
    files.key.touch(mode=0o600)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def _builder(
    subject: str, issuer: str, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + VALID)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
