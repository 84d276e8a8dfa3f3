"""Whether a service answers, as /readyz asks: servers that answer, that answer something
else, and that are away.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.ports import free_port
from plugins.probes.dependencies import OUTDATED_S
from supervisor_tasks.monitoring.checks import (
    ChainAnswers,
    DatabaseAnswers,
    LoginNodeAnswers,
    NoAnswerError,
)
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


def http(status: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


RESULT = b'{"jsonrpc":"2.0","id":1,"result":"0x539"}'
ERROR = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32600}}'
FAILING = (http("502 Bad Gateway", RESULT), http("200 OK", ERROR))


@pytest.mark.parametrize("first", FAILING, ids=["status", "no result"])
def test_chain_answers__an_endpoint_fails__the_next_one_is_asked(first: bytes) -> None:
    saying = partial(server_saying, asked=True)
    with saying(first) as bad, saying(http("200 OK", RESULT)) as good:
        away, bad_url = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{bad}"
        ChainAnswers([away, bad_url, f"http://127.0.0.1:{good}"])()
        with pytest.raises(NoAnswerError, match="HTTP status"):
            ChainAnswers([away, bad_url])()


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
