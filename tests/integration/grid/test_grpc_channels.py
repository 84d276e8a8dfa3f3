"""TLS to the grid's services: verified by an authority, or, where the operator says so,
not at all.
"""

import datetime
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health, health_pb2_grpc

from devgrid.machine import deadline
from devgrid.tls import Certificates, make_certificates
from supervisor_tasks.grid.grpc_channels import (
    Channels,
    ServiceDownError,
    may_be_reached,
)

METHOD = "/grpc.health.v1.Health/Check"


@pytest.fixture(scope="module")
def address(certificates: Certificates) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    with served(
        server, certificates.key.read_bytes(), certificates.cert.read_bytes()
    ) as served_at:
        yield served_at


@contextmanager
def served(server: grpc.Server, key: bytes, certificate: bytes) -> Iterator[str]:
    credentials = grpc.ssl_server_credentials([(key, certificate)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(grace=None).wait()


@pytest.fixture
def without_names() -> Iterator[str]:
    """The address of a service whose certificate names no host."""
    key, today = (
        ec.generate_private_key(ec.SECP256R1()),
        datetime.datetime.now(datetime.UTC),
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    with served(
        grpc.server(futures.ThreadPoolExecutor(2)),
        key.private_bytes(serialization.Encoding.PEM, *form),
        certificate.public_bytes(serialization.Encoding.PEM),
    ) as served_at:
        yield served_at


def answered(channels: Channels, address: str) -> bytes:
    with channels.open(address) as channel:
        answer: bytes = channel.unary_unary(METHOD)(b"", timeout=deadline(10))  # type: ignore[arg-type]
    return answer


def test_open__authority_known__answers(
    address: str, certificates: Certificates
) -> None:
    assert answered(Channels(authority=certificates.ca), address) == b"\x08\x01"


def test_open__authority_unknown__is_refused(address: str, tmp_path: Path) -> None:
    other = make_certificates(tmp_path)
    with pytest.raises(grpc.RpcError) as caught:
        answered(Channels(authority=other.ca), address)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_open__unverified__answers_with_any_certificate(address: str) -> None:
    assert answered(Channels(verified=False), address) == b"\x08\x01"


def test_open__unverified_and_no_server__says_so() -> None:
    with pytest.raises(ServiceDownError, match="shows no certificate"):
        Channels(verified=False).open("127.0.0.1:9")


def test_open__unverified_and_no_name_in_the_certificate__says_so(
    without_names: str,
) -> None:
    with pytest.raises(ServiceDownError, match="names no host"):
        Channels(verified=False).open(without_names)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "https://127.0.0.1",
        "127.0.0.1:none",
        "127.0.0.1:99999",
        "a..b:443",
    ],
)
def test_open__unverified_and_an_address_of_no_service__says_so(address: str) -> None:
    with pytest.raises(ServiceDownError, match="shows no certificate"):
        Channels(verified=False).open(address)


def test_open__file_of_the_authority_is_not_there__says_so(tmp_path: Path) -> None:
    with pytest.raises(
        ServiceDownError, match=r"SBATCH_CA cannot be read: .*none\.pem"
    ):
        Channels(authority=tmp_path / "none.pem").open("127.0.0.1:9")


@pytest.mark.parametrize(
    ("address", "reachable"),
    [
        ("logger.example.com:50051", True),
        ("10.0.0.1:50051", True),
        ("[fd00::1]:50051", True),
        ("logger", True),
        ("dns:///logger.example.com:50051", True),
        ("https://logger", False),
        ("https://logger:50051", False),
        ("logger:port", False),
        ("logger:0", False),
        ("logger:99999", False),
        (":50051", False),
        ("the logger:50051", False),
        ("logger:50051\n", False),
        ("logger:50051/path", False),
    ],
)
def test_may_be_reached__host_and_port__only_as_grpc_can_connect_to_it(
    address: str, reachable: bool
) -> None:
    assert may_be_reached(address) is reachable
