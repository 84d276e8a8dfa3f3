"""The way to slurmrestd over TLS: whose certificate is accepted; and answers that no
slurmrestd should give. The server is this test's own.
"""

import gzip
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from devgrid.machine import deadline
from devgrid.tls import Certificates, make_certificates
from supervisor_tasks.slurm.rest_answers import RestAnswer
from supervisor_tasks.slurm.rest_client import (
    RestClient,
    RestCutError,
    RestUnavailableError,
)
from tests.support.http_servers import Quiet, http_server

TIMEOUT_S = 60.0
PING = b'{"pings": [{"hostname": "h", "pinged": "UP"}]}'
# as of 24.11, with status 404
NO_JOB = b'{"errors": [{"error": "Invalid job id specified", "error_number": 2017}]}'


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "tls")


@contextmanager
def answering(
    certificates: Certificates, host: str = "127.0.0.1"
) -> Iterator[tuple[list[str], int]]:
    """A server with TLS: the tokens that it has got, and its port."""
    tokens: list[str] = []

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tokens.append(self.headers["X-SLURM-USER-TOKEN"])
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.cert, certificates.key)
    with ThreadingHTTPServer((host, 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield tokens, server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def asked(url: str, ca: Path | None) -> int:
    client = RestClient(url, ca)
    try:
        return client.request(
            "GET", "ping", "slurm", "a token", timeout_s=TIMEOUT_S
        ).status
    finally:
        client.close()


def test_request__over_tls__is_answered(certificates: Certificates) -> None:
    with answering(certificates) as (tokens, port):
        assert asked(f"https://localhost:{port}", certificates.ca) == 200
    assert tokens == ["a token"]


@pytest.mark.parametrize(
    "case", ["of another authority", "of no known authority", "of another host"]
)
def test_request__certificate_is_not_trusted__nothing_is_sent(
    certificates: Certificates, tmp_path: Path, case: str
) -> None:
    authority, listens, host = {
        "of another authority": (
            make_certificates(tmp_path / "other").ca,
            "127.0.0.1",
            "localhost",
        ),
        "of no known authority": (None, "127.0.0.1", "localhost"),
        "of another host": (certificates.ca, "127.0.0.2", "127.0.0.2"),
    }[case]
    refused = pytest.raises(RestUnavailableError, match="takes no connection")
    with answering(certificates, listens) as (tokens, port), refused:
        asked(f"https://{host}:{port}", authority)
    assert tokens == []


@contextmanager
def offering(*versions: str) -> Iterator[tuple[list[str], str]]:
    """A server that has these versions of the API: the paths that it was asked, and its
    URL.
    """
    paths: list[str] = []

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            known = self.path.split("/")[2] in versions
            is_ping = self.path.endswith("ping")
            body = b"not here"
            if known:
                body = PING if is_ping else NO_JOB
            self.send_response(200 if known and is_ping else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http_server(Handler) as url:
        yield paths, url


def test_request__slurmrestd_has_the_newer_api__is_asked_by_it() -> None:
    with offering("v0.0.42") as (paths, url):
        client = RestClient(url)
        answers = [
            client.request("GET", "ping", "slurm", "a token", timeout_s=TIMEOUT_S)
            for _ in range(2)
        ]
        client.close()
    assert paths == [
        "/slurm/v0.0.38/ping",
        "/slurm/v0.0.42/ping",
        "/slurm/v0.0.42/ping",
    ]
    assert [answer.body["pings"][0]["ping"] for answer in answers] == ["UP", "UP"]


def test_request__slurmrestd_has_no_known_api__says_which_are_known() -> None:
    known = pytest.raises(
        RestUnavailableError, match=r"has no API of v0\.0\.38 or v0\.0\.42.*not here"
    )
    with offering("v0.0.99") as (_, url), known:
        asked(url, None)


def test_request__slurm_knows_no_such_job__is_an_answer_of_that_api() -> None:
    with offering("v0.0.42") as (paths, url):
        client = RestClient(url)
        client.request("GET", "ping", "slurm", "a token", timeout_s=TIMEOUT_S)
        answer = client.request("GET", "job/9", "slurm", "a token", timeout_s=TIMEOUT_S)
        client.close()
    assert (answer.is_unknown_job, answer.was_rejected_by_slurmrestd) == (True, False)
    assert paths[2:] == ["/slurm/v0.0.42/job/9"]


@contextmanager
def sending(*pieces: bytes, every_s: float = 0.0, **headers: str) -> Iterator[str]:
    """A server that answers with these pieces, with a pause before each; its URL."""
    over = threading.Event()

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(sum(map(len, pieces))))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            with suppress(OSError):  # the client has gone
                for piece in pieces:
                    over.wait(every_s)
                    self.wfile.write(piece)

    with http_server(Handler) as url:
        try:
            yield url
        finally:
            over.set()


def answer_of(url: str, timeout_s: float = TIMEOUT_S) -> RestAnswer:
    client = RestClient(url)
    try:
        return client.request("GET", "jobs", "slurm", "a token", timeout_s=timeout_s)
    finally:
        client.close()


def test_request__a_users_text_is_no_utf8__the_other_values_are_read() -> None:
    with sending(b'{"jobs": [{"name": "caf\xe9", "job_id": 7}]}') as url:
        (job,) = answer_of(url).body["jobs"]
    assert job == {"name": "caf\ufffd", "job_id": 7}


@pytest.mark.parametrize("text", [b"[" * 100_000, b"<html></html>", b"7"])
def test_request__answer_is_no_object__is_no_answer(text: bytes) -> None:
    with sending(text) as url:
        answer = answer_of(url)
    assert (answer.failed, answer.is_missing) == (True, True)


def test_request__answer_comes_byte_by_byte__is_given_up_in_time() -> None:
    """Each byte comes in time, and the whole does not."""
    began_s = time.monotonic()
    with sending(*[b"x"] * 300, every_s=0.1) as url, pytest.raises(RestCutError):
        answer_of(url, timeout_s=1.0)
    assert time.monotonic() - began_s < deadline(15)


def test_request__answer_is_compressed__is_refused_before_it_grows() -> None:
    packed = gzip.compress(b'{"jobs": []}')
    with (
        sending(packed, Content_Encoding="gzip") as url,
        pytest.raises(RestCutError, match="gzip"),
    ):
        answer_of(url)
