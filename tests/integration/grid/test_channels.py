"""TLS to the grid's services: verified by an authority, or, where the operator says so,
not at all.
"""

from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc

from devgrid.machine import deadline
from devgrid.tls import Certificates, make_certificates
from supervisor_tasks.grid.grpc_channels import Channels, ServiceDownError

METHOD = "/grpc.health.v1.Health/Check"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def address(certificates: Certificates) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    pair = [(certificates.key.read_bytes(), certificates.cert.read_bytes())]
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(pair))
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(grace=None).wait()


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
