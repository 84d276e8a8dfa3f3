"""Whether a service answers, as /readyz asks: servers that answer, that answer something
else, and that are away.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import psycopg
import pytest

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.ports import free_port
from plugins.probes.dependencies import OUTDATED_S
from supervisor_tasks.chain.rpc.client import RpcUnavailableError
from supervisor_tasks.observability.checks import (
    ChainAnswers,
    DatabaseAnswers,
    LoginNodeAnswers,
    NoAnswerError,
)
from tests.support.http_servers import Quiet, http_server
from tests.support.ledger import migrated


@contextmanager
def server_saying(answer: bytes, *, asked: bool) -> Iterator[int]:
    """A server that says the same to each caller; `asked`: after a request. Returns its
    port.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:  # the test is over
                    return
                with connection:
                    if asked:
                        connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)


@pytest.mark.parametrize(
    ("banner", "answers"),
    [(b"SSH-2.0-OpenSSH_9.2p1\r\n", True), (b"220 mail\r\n", False), (b"", False)],
)
def test_login_node_answers__banner__is_that_of_an_ssh_server(
    banner: bytes, answers: bool
) -> None:
    with server_saying(banner, asked=False) as port:
        check = LoginNodeAnswers(f"127.0.0.1:{port}")
        if answers:
            check()
            return
        with pytest.raises(NoAnswerError, match="no SSH server"):
            check()


LOGIN = "Basic " + b64encode(b"site:token").decode()


@contextmanager
def node(status: int, of_call: Mapping[str, object]) -> Iterator[str]:
    """A node that gives each call this answer, and wants a login. The URL has it."""

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            calls = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(
                [{"id": call["id"], **of_call} for call in calls]
            ).encode()
            may = self.headers["Authorization"] == LOGIN
            self.send_response(status if may else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http_server(Handler) as url:
        yield url.replace("//", "//site:token@")


RESULT = {"result": "0x539"}


@pytest.mark.parametrize(
    ("status", "answer", "error"),
    [
        (502, RESULT, "HTTP status 502"),
        (200, {"error": {"code": -32600, "message": "no"}}, "rejected: no"),
        (200, {"result": [1]}, "answered"),
    ],
    ids=["status", "error", "no chain id"],
)
def test_chain_answers__an_endpoint_fails__the_next_one_is_asked(
    status: int, answer: Mapping[str, object], error: str
) -> None:
    with node(status, answer) as bad, node(200, RESULT) as good:
        away = f"http://127.0.0.1:{free_port()}"
        ChainAnswers([away, bad, good])()
        with pytest.raises(RpcUnavailableError, match=error):
            ChainAnswers([away, bad])()


def test_chain_answers__no_endpoint__is_no_answer() -> None:
    with pytest.raises(NoAnswerError, match="no endpoint"):
        ChainAnswers([])()


def test_database_answers__connection_is_lost__the_next_check_connects_again() -> None:
    with migrated() as (_, environment):
        check = DatabaseAnswers(environment["DATABASE_URL"])
        check()
        kept = check._connection
        check()
        assert check._connection is kept
        kept.close()
        with pytest.raises(psycopg.Error):
            check()
        check()
        assert check._connection is not kept
        check._connection.close()


def test_database_answers__its_host_vanishes__the_check_ends_and_connects_again() -> (
    None
):
    network = ["unshare", "--net"]
    # root stays itself: it must reach the folder of the database's own user
    if os.geteuid() != 0:
        network += ["--user", "--map-root-user"]
    program = (sys.executable, "-m", "tests.support.vanishing_host")
    with migrated() as (_, environment):
        done = subprocess.run(
            [*network, *program, environment["DATABASE_URL"]],
            cwd=REPOSITORY,
            capture_output=True,
            check=True,
            timeout=deadline(60.0),
        )
    before, meanwhile, after = json.loads(done.stdout)
    assert [before[0], meanwhile[0], after[0]] == [True, False, True]
    assert meanwhile[1] < deadline(OUTDATED_S)
