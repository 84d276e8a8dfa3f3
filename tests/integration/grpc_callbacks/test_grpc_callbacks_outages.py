"""The gRPC process while its database hangs, and its messages while the broker
misbehaves.
"""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from redis import Redis
from sqlalchemy import text

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import answers, wait_until
from devgrid.state_folder import private_processes
from devgrid.tls import make_certificates
from grpc_callbacks.notifier import MAX_WAITING_MESSAGES, PAUSE_S, PollNotifier
from plugins.authorized_keys import ANSWERS_WITHIN_S
from protos.supervisor.v1alpha1 import supervisor_pb2 as messages
from protos.supervisor.v1alpha1 import supervisor_pb2_grpc as services
from supervisor_tasks.config import embedded_servers
from tests.support.callback_servers import (
    PUBLIC_LINE,
    CallbackServer,
    callback_server,
    until_stored,
)
from tests.support.refusals import reasons

pytestmark = pytest.mark.slow  # outages that last

NAME = "0x" + "cd" * 32


@pytest.fixture(scope="module")
def site() -> Iterator[CallbackServer]:
    with callback_server() as server:
        yield server


def report(channel: grpc.Channel, slurm_id: int, timeout_s: float = 10.0) -> None:
    request = messages.SetJobStatusRequest(
        name=NAME, id=slurm_id, duration=1, status=messages.JOB_STATUS_FINISHED
    )
    services.JobAPIStub(channel).SetJobStatus(request, timeout=deadline(timeout_s))


def refused(channel: grpc.Channel, slurm_id: int) -> tuple[grpc.StatusCode, float]:
    began_s = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        report(channel, slurm_id)
    return caught.value.code(), time.monotonic() - began_s


@pytest.mark.quiet_machine
def test_database_hung__unavailable_soon_and_sshd_is_answered__taken_again_by_itself(
    site: CallbackServer,
) -> None:
    running, address = site.start("callbacks-hung")
    with grpc.insecure_channel(address) as channel:
        report(channel, 1)
        with site.database_hung():
            code, took_s = refused(channel, 2)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert took_s < deadline(3.5)
            # Of each 16 would wait for the database's 2 s, if it was not known by then
            # that it hangs.
            callers = [
                threading.Thread(target=refused, args=(channel, number))
                for number in range(3, 123)
            ]
            for caller in callers:
                caller.start()
            ask = services.SshAPIStub(channel).FetchAuthorizedKeys
            keys = ask(
                messages.FetchAuthorizedKeysRequest(),
                timeout=deadline(ANSWERS_WITHIN_S),
            )
            assert keys.authorized_keys == f"restrict {PUBLIC_LINE}\n"
            for caller in callers:
                caller.join()

        def taken() -> bool:
            try:
                report(channel, 100)
            except grpc.RpcError:
                return False
            return True

        wait_until(taken, "callbacks to be taken again", 10.0, 0.1)
    with site.engine.connect() as connection:
        assert (
            connection.scalar(
                text("SELECT count(*) FROM callbacks WHERE slurm_id IN (1, 100)")
            )
            == 2
        )
    site.processes.stop(running)


def test_sigterm__while_the_database_hangs__ends(site: CallbackServer) -> None:
    running, address = site.start("callbacks-to-end")
    with site.database_hung():
        with grpc.insecure_channel(address) as channel:
            refused(channel, 200)
        began_s = time.monotonic()
        site.processes.kill(running, signal.SIGTERM)
        assert time.monotonic() - began_s < deadline(10.0)


def test_eight_callers__all_acknowledged__all_on_disk(site: CallbackServer) -> None:
    running, address = site.start("callbacks-many")
    calls = 25

    def call(caller: int) -> None:
        with grpc.insecure_channel(address) as channel:
            for number in range(calls):
                until_stored(partial(report, channel, 1000 * caller + number))

    callers = [threading.Thread(target=call, args=(caller,)) for caller in range(1, 9)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    with site.engine.connect() as connection:
        assert (
            connection.scalar(
                text("SELECT count(*) FROM callbacks WHERE slurm_id >= 1000")
            )
            == 8 * calls
        )
    site.processes.stop(running)


def test_sigterm__the_moment_it_listens__ends_with_status_0(
    site: CallbackServer,
) -> None:
    for _ in range(3):
        port = free_port()
        environment = {**site.environment, "LISTEN_ADDRESS": f"127.0.0.1:{port}"}
        argv = [sys.executable, "-m", "grpc_callbacks"]
        child = subprocess.Popen(
            argv, env=environment, cwd=REPOSITORY, stderr=subprocess.DEVNULL
        )
        wait_until(lambda port=port: answers(port), "it to listen", 20.0, 0.0)  # type: ignore[misc]
        child.terminate()
        assert child.wait(deadline(20)) == 0


def test_grpc_callbacks__tls_files_missing__prints_lines_and_ends_with_status_2(
    site: CallbackServer, tmp_path: Path
) -> None:
    missing = str(tmp_path / "cert.pem")
    environment = {**site.environment, "TLS_ENABLE": "true", "TLS_CERT": missing}
    argv = [sys.executable, "-m", "grpc_callbacks"]
    ended = subprocess.run(
        argv,
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=deadline(30),
    )
    assert ended.returncode == 2
    key, certificate = reasons(ended.stderr)
    assert (
        key == "TLS_KEY: found nothing; expected a PEM file, because TLS_ENABLE is true"
    )
    assert certificate.startswith(
        f"TLS_CERT: found {missing!r}; expected a file that can be read"
    )


KEY, CERTIFICATE = (
    "a private key as PEM, without a passphrase",
    "certificates as PEM, the server's own first",
)


@pytest.mark.parametrize(
    ("key", "certificate", "expected"),
    [
        (
            "server.pem",
            "server.pem",
            [f"TLS_KEY: found '%s/server.pem'; expected {KEY}"],
        ),
        (
            "locked.key",
            "server.pem",
            [f"TLS_KEY: found '%s/locked.key'; expected {KEY}"],
        ),
        (
            "text",
            "server.key",
            [
                f"TLS_KEY: found '%s/text'; expected {KEY}",
                f"TLS_CERT: found '%s/server.key'; expected {CERTIFICATE}",
            ],
        ),
        (
            "server.key",
            "ca.pem",
            [
                "TLS_CERT: found '%s/ca.pem'; expected the certificate of the key in TLS_KEY, before all others"
            ],
        ),
    ],
)
def test_grpc_callbacks__tls_files_do_not_fit__prints_lines_and_ends_with_status_2(
    site: CallbackServer,
    tmp_path: Path,
    key: str,
    certificate: str,
    expected: list[str],
) -> None:
    locked = load_pem_private_key(
        make_certificates(tmp_path).key.read_bytes(), None
    ).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    (tmp_path / "locked.key").write_bytes(locked)
    (tmp_path / "text").write_text("no PEM\n")
    environment = {
        **site.environment,
        "LISTEN_ADDRESS": "127.0.0.1:0",
        "TLS_ENABLE": "true",
        "TLS_KEY": str(tmp_path / key),
        "TLS_CERT": str(tmp_path / certificate),
    }
    argv = [sys.executable, "-m", "grpc_callbacks"]
    ended = subprocess.run(
        argv,
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=deadline(30),
    )
    assert ended.returncode == 2
    assert reasons(ended.stderr) == [line % tmp_path for line in expected]


def test_grpc_callbacks__listen_address_taken__prints_a_line_and_ends_with_status_2(
    site: CallbackServer,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        environment = {**site.environment, "LISTEN_ADDRESS": address}
        argv = [sys.executable, "-m", "grpc_callbacks"]
        ended = subprocess.run(
            argv,
            env=environment,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=deadline(30),
        )
    assert ended.returncode == 2
    assert f"LISTEN_ADDRESS: found {address!r}; expected a free one" in ended.stderr


# --- messages for the task poll_jobs -------------------------------------------------


def test_request_poll__redis_flushed_between_two__second_arrives_too(
    site: CallbackServer,
) -> None:
    notifier = PollNotifier(site.environment["BROKER_URL"], "flushed")
    with Redis(
        unix_socket_path=site.environment["BROKER_URL"].removeprefix("redis+socket://")
    ) as redis:
        for _ in range(2):
            notifier.request_poll()
            wait_until(lambda: bool(redis.llen("flushed.slurm")), "the message", 5.0)
            redis.flushall()
    notifier.close()


def test_request_poll__called_many_times__few_messages_and_the_last_call_counts(
    site: CallbackServer,
) -> None:
    with Redis(
        unix_socket_path=site.environment["BROKER_URL"].removeprefix("redis+socket://")
    ) as redis:
        notifier = PollNotifier(
            site.environment["BROKER_URL"], "together", most_waiting=10_000
        )
        notifier.request_poll()
        wait_until(lambda: bool(redis.llen("together.slurm")), "the first message", 5.0)
        began_s = time.monotonic()
        for _ in range(3000):
            notifier.request_poll()
            time.sleep(0.0001)  # the pace of a burst of callbacks
        lasted_s = time.monotonic() - began_s
        in_time = redis.llen("together.slurm")
        # the first one, and one that was due when the last call came
        assert in_time <= 3 + lasted_s / PAUSE_S
        notifier.request_poll()
        notifier.close()
        assert redis.llen("together.slurm") > in_time


def test_request_poll__queue_is_full__sends_again_after_a_worker_took_some(
    site: CallbackServer,
) -> None:
    with Redis(
        unix_socket_path=site.environment["BROKER_URL"].removeprefix("redis+socket://")
    ) as redis:
        notifier = PollNotifier(site.environment["BROKER_URL"], "full", most_waiting=3)

        def called_until(waiting: int) -> bool:
            notifier.request_poll()
            return bool(redis.llen("full.slurm") == waiting)

        wait_until(lambda: called_until(3), "the queue to be full", 30.0)
        redis.ltrim("full.slurm", 0, 0)  # a worker has taken two
        wait_until(lambda: called_until(3), "two messages more", 30.0)
        notifier.close()
        assert redis.llen("full.slurm") == 3


STORM = 10_000
AT_ONCE = 500


def test_storm_of_forged_callbacks__no_worker__redis_holds_a_few_messages(
    site: CallbackServer,
) -> None:
    running, address = site.start("storm")
    ended = messages.JOB_STATUS_FINISHED
    with (
        Redis(
            unix_socket_path=site.environment["BROKER_URL"].removeprefix(
                "redis+socket://"
            )
        ) as redis,
        grpc.insecure_channel(address) as channel,
    ):
        used_before = redis.info("memory")["used_memory"]
        say = services.JobAPIStub(channel).SetJobStatus
        for first in range(0, STORM, AT_ONCE):
            numbers = range(first, first + AT_ONCE)
            lies = [
                messages.SetJobStatusRequest(name=f"0x{n:064x}", id=1 + n, status=ended)
                for n in numbers
            ]
            for answer in [say.future(lie, timeout=deadline(120)) for lie in lies]:
                answer.exception()  # most are told that there is no more room for them
        assert (
            1
            <= redis.llen(f"{site.environment['CLUSTER_NAME']}.slurm")
            <= MAX_WAITING_MESSAGES
        )
        assert redis.info("memory")["used_memory"] - used_before < 5_000_000
    site.processes.kill(running, signal.SIGTERM)


NO_REDIS = b"HTTP/1.1 400 Bad Request\r\n\r\n"
NO_HELLO = b"$-1\r\n"  # redis-py stumbles over it with an unexpected error


@pytest.mark.parametrize("answer", [NO_REDIS, NO_HELLO])
def test_request_poll__broker_sent_nonsense_and_comes_back__sends_again(
    tmp_path: Path, answer: bytes
) -> None:
    port = free_port()
    server = embedded_servers.redis(tmp_path)
    argv = [port_word(word, port) for word in server.argv]
    notifier = PollNotifier(f"redis://127.0.0.1:{port}/0", "nonsense")
    with nonsense(port, answer) as heard:
        notifier.request_poll()
        assert heard.wait(deadline(10))
    with private_processes() as processes:
        processes.start(
            "redis", argv, env=server.environment, ready=lambda: answers(port)
        )
        with Redis(port=port) as redis:

            def arrived() -> bool:
                notifier.request_poll()
                return bool(redis.llen("nonsense.slurm"))

            wait_until(arrived, "a message after the nonsense", 15.0, 0.2)
        notifier.close()


def port_word(word: str, port: int) -> str:
    return str(port) if word == "0" else word


@contextmanager
def nonsense(port: int, answer: bytes) -> Iterator[threading.Event]:
    """A server that answers every command with what is no answer of Redis to it."""
    heard = threading.Event()
    with socket.create_server(("127.0.0.1", port)) as listener:

        def serve() -> None:
            caller, _ = listener.accept()
            with caller:
                while said := caller.recv(4096):
                    is_ping = b"PING" in said and answer is NO_HELLO
                    caller.sendall(b"+PONG\r\n" if is_ping else answer)
                    if not is_ping:
                        break
            heard.set()

        thread = threading.Thread(target=serve)
        thread.start()
        yield heard
        thread.join()
