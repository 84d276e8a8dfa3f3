"""Floods of the callbacks' port with streams, connections, slow senders and garbage do
not delay an honest caller.
"""

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from sqlalchemy import text

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.processes import wait_until
from grpc_callbacks.connections import CALLS_OF_A_PEER
from grpc_callbacks.self_check import CALM_S, MAX_TRIES, TRY_S
from grpc_callbacks.server import MAX_STREAMS
from protos.supervisor.v1alpha1 import supervisor_pb2 as messages
from protos.supervisor.v1alpha1 import supervisor_pb2_grpc as services
from tests.support.honest_caller import HonestCaller
from tests.support.marks import in_chaos
from tests.support.ports import (
    PREFACE,
    SET_JOB_STATUS,
    WATCH,
    CallbackSite,
    Crowd,
    Port,
    allow_open_files,
    keys_for,
    random_job_id,
    report,
    started_site,
    unfinished_call,
    usual_wait_s,
    whole_call,
)

MAX_DELAY_S = 0.1
MEASURED_S = 2.0  # some hundred calls
MAX_MESSAGE_BYTES = 4096
MAX_METADATA_BYTES = 8192
CALLS = CALLS_OF_A_PEER + 64
RANDOM = random.Random(11)


@pytest.fixture(scope="module")
def site() -> Iterator[CallbackSite]:
    allow_open_files(20_000)
    with started_site() as started:
        yield started


@pytest.fixture(scope="module")
def port(site: CallbackSite) -> Port:
    return site.start("callbacks")


@pytest.fixture
def crowd(port: Port) -> Iterator[Crowd]:
    many = Crowd(port)
    yield many
    many.leave()


def test_watch_streams__400_broken_off__are_refused_and_the_process_answers(
    port: Port, crowd: Crowd
) -> None:
    """Once, they held all threads of the process, which then neither answered nor
    ended. A connection has 16 streams at most.
    """
    streams = range(1, 2 * MAX_STREAMS, 2)
    asked = health_pb2.HealthCheckRequest(service="").SerializeToString()
    calls = b"".join(whole_call(stream, WATCH, asked) for stream in streams)
    crowd.connect(400 // MAX_STREAMS, PREFACE + calls)
    with grpc.insecure_channel(port.address) as channel:
        report(channel, random_job_id(), timeout_s=5.0)
    crowd.leave()
    with grpc.insecure_channel(
        port.address, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        report(channel, random_job_id(), timeout_s=5.0)
        assert answer_to_watch(channel, "") is grpc.StatusCode.UNIMPLEMENTED


def answer_to_watch(channel: grpc.Channel, service: str) -> grpc.StatusCode:
    """Open a Watch stream. Returns the status of the answer."""
    health: Any = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    with pytest.raises(grpc.RpcError) as caught:
        next(health.Watch(request, timeout=deadline(10)))
    code: grpc.StatusCode = caught.value.code()
    return code


def answer_to_check(channel: grpc.Channel, service: str) -> grpc.StatusCode:
    """Ask for a service's health. Returns the status of the refusal."""
    health: Any = health_pb2_grpc.HealthStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(
            health_pb2.HealthCheckRequest(service=service), timeout=deadline(10)
        )
    code: grpc.StatusCode = caught.value.code()
    return code


def test_service_names__of_a_megabyte_each__are_refused_and_take_no_memory(
    port: Port,
) -> None:
    """Once, Watch kept 260 MB of them."""
    before_mb = port.memory_mb()
    with grpc.insecure_channel(port.address) as channel:
        for number in range(20):
            name = f"{number}" + "x" * 1_000_000
            answers = {answer_to_check(channel, name), answer_to_watch(channel, name)}
            assert answers <= {
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                grpc.StatusCode.UNIMPLEMENTED,
            }
        report(channel, random_job_id(), timeout_s=5.0)
    assert port.memory_mb() - before_mb < 30


@pytest.mark.parametrize(
    ("length", "metadata", "answer"),
    [
        (MAX_MESSAGE_BYTES, 0, grpc.StatusCode.INVALID_ARGUMENT),
        (MAX_MESSAGE_BYTES + 1, 0, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (1, MAX_METADATA_BYTES, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
    ids=["longest message", "longer message", "long metadata"],
)
def test_message__as_long_as_no_callback_is__is_refused(
    port: Port, length: int, metadata: int, answer: grpc.StatusCode
) -> None:
    """The longest message is read, and is no callback."""
    with grpc.insecure_channel(port.address) as channel:
        call: Any = channel.unary_unary(SET_JOB_STATUS.decode())
        with pytest.raises(grpc.RpcError) as caught:
            call(
                b"\xff" * length,
                metadata=(("padding", "x" * metadata),),
                timeout=deadline(10),
            )
        assert caught.value.code() is answer
        report(channel, random_job_id(), timeout_s=5.0)


@pytest.mark.quiet_machine  # delays of 100 ms show on a quiet machine alone
def test_callback_port__callers_never_finish_their_calls__other_callers_do_not_wait(
    port: Port, crowd: Crowd
) -> None:
    """Once, each took a thread of the process until its connection ended."""
    with grpc.insecure_channel(port.address) as channel:
        alone_s = usual_wait_s(channel)
        crowd.connect(
            100,
            PREFACE + b"".join(unfinished_call(stream) for stream in range(1, 9, 2)),
            addresses=20,
        )
        assert usual_wait_s(channel) - alone_s < MAX_DELAY_S


@pytest.mark.quiet_machine  # delays of 100 ms show on a quiet machine alone
def test_callback_port__25600_half_calls_of_one_peer__serves_a_good_caller_of_it(
    port: Port, crowd: Crowd
) -> None:
    """Once, they took more than 100 MB for an hour."""
    with grpc.insecure_channel(port.address) as channel:
        alone_s = usual_wait_s(channel)
    before_mb = port.memory_mb()
    crowd.connect(
        256, PREFACE + b"".join(unfinished_call(stream) for stream in range(1, 201, 2))
    )
    with grpc.insecure_channel(
        port.address, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        assert usual_wait_s(channel) - alone_s < MAX_DELAY_S
        report(channel, random_job_id(), timeout_s=5.0)
    assert port.memory_mb() - before_mb < 100


def test_call__its_message_never_comes__is_given_up(port: Port) -> None:
    enough = threading.Event()
    with grpc.insecure_channel(port.address) as channel:
        call: Any = channel.stream_unary(
            "/supervisor.v1alpha1.SshAPI/FetchAuthorizedKeys"
        )
        with pytest.raises(grpc.RpcError) as caught:
            call(iter(lambda: enough.wait(), True), timeout=60)
        enough.set()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "found no message" in str(caught.value.details())


def flood(port: Port, crowd: Crowd, connections: int) -> None:
    """Open so many connections of all kinds, which stay."""
    share = -(-connections // 7)
    crowd.connect(share, addresses=1)  # which send nothing
    crowd.connect(share, b"GET / HTTP/1.1\r\n\r\n", addresses=50)
    # the first bytes of TLS
    crowd.connect(share, b"\x16\x03\x01\x02\x00\x01", addresses=50)
    crowd.connect(share, PREFACE[:10], addresses=50)
    crowd.connect(share, PREFACE + unfinished_call(), addresses=200)
    crowd.connect(share, RANDOM.randbytes(200), addresses=50)
    crowd.send_slowly(share, PREFACE, unfinished_call(), addresses=200)


@pytest.fixture(scope="module")
def tls_port(site: CallbackSite) -> Port:
    return site.start("callbacks with TLS", **site.tls)


@pytest.mark.quiet_machine  # delays of 100 ms show on a quiet machine alone
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("connections", [1_000, in_chaos(10_000)])
def test_connections__of_all_kinds__delay_a_good_caller_by_100_ms_at_most(
    request: pytest.FixtureRequest, site: CallbackSite, connections: int, tls: bool
) -> None:
    """The good caller calls while they come, and when they are there. While they come,
    the attacker's program takes a core: of the few calls the median counts.
    """
    port: Port = request.getfixturevalue("tls_port" if tls else "port")
    job_ids = [random_job_id() for _ in range(3)]
    for job_id in job_ids:
        site.insert_job(job_id, slurm_id=7)
    ca = site.certificates.ca if tls else None
    crowd = Crowd(port)
    # measured before the flood, which must not make its own bound longer
    most_s = deadline(MAX_DELAY_S)
    try:
        with HonestCaller(port.address, job_ids[0], ca) as alone:
            time.sleep(MEASURED_S)
        with HonestCaller(port.address, job_ids[1], ca) as beside:
            flood(port, crowd, connections)
        with HonestCaller(port.address, job_ids[2], ca) as afterwards:
            time.sleep(MEASURED_S)
    finally:
        crowd.leave()
    come_s = beside.median_s() - alone.median_s()
    are_there_s = afterwards.p95_s() - alone.p95_s()
    print(f"later by {come_s:.3f} s while they come, by {are_there_s:.3f} s afterwards")
    assert max(come_s, are_there_s) < most_s


def test_connections_of_one_peer__are_bounded__a_new_caller_of_it_is_served(
    port: Port, crowd: Crowd
) -> None:
    """A customer's program on the login node has the same address as sshd's command
    there.
    """
    crowd.connect(500, PREFACE)
    wait_until(
        lambda: crowd.still_open() <= 256,
        "the connections above the bound to be closed",
        20.0,
    )
    with grpc.insecure_channel(port.address) as channel:
        report(channel, random_job_id(), timeout_s=5.0)


def test_connections__that_say_nothing__are_closed(port: Port, crowd: Crowd) -> None:
    crowd.connect(20)
    wait_until(
        lambda: crowd.still_open() == 0, "the silent connections to be closed", 30.0
    )


@contextmanager
def database_that_does_not_answer(site: CallbackSite) -> Iterator[None]:
    """No callback is stored meanwhile, so each call about one stays under way."""
    with site.engine.begin() as connection:
        connection.execute(text("LOCK TABLE callbacks IN ACCESS EXCLUSIVE MODE"))
        yield


def test_calls_of_one_peer__are_bounded__other_peers_and_later_calls_are_answered(
    site: CallbackSite, port: Port
) -> None:
    """Each call is whole, so that it counts until it is answered."""
    connections = -(-CALLS // MAX_STREAMS)
    with ExitStack() as stack:
        channels = [
            stack.enter_context(
                grpc.insecure_channel(
                    port.address, options=[("grpc.use_local_subchannel_pool", 1)]
                )
            )
            for _ in range(connections)
        ]
        for channel in channels:
            grpc.channel_ready_future(channel).result(deadline(20))
        with database_that_does_not_answer(site):
            process = psutil.Process(port.running.pid)
            process.suspend()  # so that it finds all calls at once
            try:
                calls = [
                    begin_report(channels[number % connections])
                    for number in range(CALLS)
                ]
            finally:
                process.resume()
            wait_until(
                lambda: sum(call.done() for call in calls) >= CALLS - CALLS_OF_A_PEER,
                "the calls above the bound to be answered",
                20.0,
            )
            assert keys_for(port, "127.0.2.1").startswith("restrict ssh-ed25519 ")
        codes = Counter(call.code() for call in calls)
        refused = codes.pop(grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert 0 < refused <= CALLS - CALLS_OF_A_PEER
        assert codes.keys() <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
        assert "too_many_calls" in port.log
        report(channels[0], random_job_id(), timeout_s=5.0)


def begin_report(channel: grpc.Channel) -> Any:
    """Send a whole callback, and do not wait for the answer."""
    request = messages.SetJobStatusRequest(
        name=random_job_id(), id=7, status=messages.JOB_STATUS_FINISHED
    )
    stub: Any = services.JobAPIStub(channel)
    return stub.SetJobStatus.future(request, timeout=deadline(30))


STUCK = """
import asyncio, os, sys, time
from grpc_callbacks import __main__ as program
from grpc_callbacks.server import CallbackServer

begin = CallbackServer.start

def stand_still():
    open(sys.argv[1], "w").close()
    if "log" in sys.argv:
        os.set_blocking(1, False)
        try:
            while True:
                os.write(1, bytes(4096))
        except BlockingIOError:
            os.set_blocking(1, True)
        program.log.info("this line has no reader")
    time.sleep(3600)

async def begin_and_stand_still(server):
    await begin(server)
    asyncio.get_running_loop().call_later(1.0, stand_still)

CallbackServer.start = begin_and_stand_still
program.main()
"""


def test_process__cannot_answer_itself__ends_with_a_line_that_says_so(
    site: CallbackSite, tmp_path: Path
) -> None:
    """Even if it hangs because its log is a full pipe, so that it cannot log a line."""
    log = tmp_path / "log"
    environment = {**site.environment, "LISTEN_ADDRESS": "127.0.0.1:0"}
    stuck, stuck_too = tmp_path / "stuck", tmp_path / "stuck too"
    argv = [sys.executable, "-c", STUCK]
    reads, writes = os.pipe()
    with log.open("wb") as out:
        children = [
            subprocess.Popen(
                [*argv, str(stuck)],
                env=environment,
                cwd=REPOSITORY,
                stdout=out,
                stderr=subprocess.STDOUT,
            ),
            subprocess.Popen(
                [*argv, str(stuck_too), "log"],
                env=environment,
                cwd=REPOSITORY,
                stdout=writes,
                stderr=subprocess.DEVNULL,
            ),
        ]
        try:
            children[0].wait(deadline(60))
            stood_still_s = time.time() - stuck.stat().st_mtime
            children[1].wait(deadline(60))
        finally:
            for child in children:
                child.kill()
                child.wait()
            os.close(reads)
            os.close(writes)
    assert [child.returncode for child in children] == [70, 70]
    without_answer_s = MAX_TRIES * TRY_S
    assert without_answer_s == 10
    assert stood_still_s > without_answer_s - TRY_S
    assert stood_still_s < without_answer_s + CALM_S + deadline(5)
    assert "does not answer itself" in log.read_text()
