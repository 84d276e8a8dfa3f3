"""The gRPC process as plugins in the field see it: on the wire, and when what it needs
is away.
"""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis import Redis
from sqlalchemy import insert, text

from devgrid import REPOSITORY
from devgrid.faults.network_proxy import Direction, Proxy
from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import answers, wait_until
from devgrid.services.start import start_server
from devgrid.tls import make_certificates
from grpc_callbacks.callback_limits import CallbackOrigin
from grpc_callbacks.callback_store import CallbackStore
from grpc_callbacks.callback_writer import (
    CallbackNotStoredError,
    CallbackWriter,
    InboxFullError,
)
from grpc_callbacks.server import REPORTER_SERVICE
from grpc_callbacks.validation import CallbackPayload
from plugins import proof
from plugins.delivery import HEARTBEAT_SERVICE
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.ledger.heartbeats import (
    REPORTER,
    continuous_since_key,
    known_reporters,
    reporter_of,
)
from supervisor_tasks.ledger.periodic_run_names import CALLBACKS
from supervisor_tasks.ledger.tables import METADATA
from tests.support.callback_servers import (
    PUBLIC_LINE,
    TRIES,
    CallbackServer,
    callback_server,
    until_stored,
)
from tests.support.refusals import reasons

NAME = "0x" + "ab" * 32


@dataclass
class TlsCallbackServer(CallbackServer):
    """The servers, with a gRPC process that speaks TLS."""

    address: str
    ca: bytes

    @contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        with grpc.secure_channel(
            self.address, grpc.ssl_channel_credentials(self.ca)
        ) as channel:
            yield channel

    def rows(self) -> list[Any]:
        query = "SELECT job_id, slurm_id, status, duration_s, exit_code, cluster FROM callbacks ORDER BY id"
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]

    def forget(self) -> None:
        with self.engine.begin() as connection:
            connection.execute(text("DELETE FROM callbacks"))


@pytest.fixture(scope="module")
def site() -> Iterator[TlsCallbackServer]:
    with callback_server() as server:
        certificates = make_certificates(server.processes.folder / "tls")
        server.environment |= {
            "TLS_ENABLE": "true",
            "TLS_CERT": str(certificates.cert),
            "TLS_KEY": str(certificates.key),
        }
        _, address = server.start("callbacks")
        yield TlsCallbackServer(
            server.processes,
            server.engine,
            server.environment,
            address,
            certificates.ca.read_bytes(),
        )


@pytest.fixture(autouse=True)
def _delete_stored_callbacks(site: TlsCallbackServer) -> None:
    site.forget()


# --- a client made from descriptors that are not ours: the field's, by hand

_FIELD = descriptor_pb2.FieldDescriptorProto
_STATUS_NAMES = [
    "UNSPECIFIED",
    "PENDING",
    "META_SCHEDULED",
    "SCHEDULED",
    "RUNNING",
    "CANCELLING",
    "CANCELLED",
    "FINISHED",
    "FAILED",
    "OUT_OF_CREDITS",
    "PANICKED",
]


def independent_messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="field.proto", package="supervisor.v1alpha1", syntax="proto3"
    )
    enum = file.enum_type.add(name="JobStatus")
    for number, name in enumerate(_STATUS_NAMES):
        enum.value.add(name=f"JOB_STATUS_{name}", number=number)
    request = file.message_type.add(name="SetJobStatusRequest")
    for number, (name, kind) in enumerate(
        [
            ("name", _FIELD.TYPE_STRING),
            ("id", _FIELD.TYPE_UINT64),
            ("duration", _FIELD.TYPE_UINT64),
            ("status", _FIELD.TYPE_ENUM),
            ("exit_code", _FIELD.TYPE_INT64),
        ],
        start=1,
    ):
        field = request.field.add(
            name=name, number=number, type=kind, label=_FIELD.LABEL_OPTIONAL
        )
        if kind == _FIELD.TYPE_ENUM:
            field.type_name = ".supervisor.v1alpha1.JobStatus"
    file.message_type.add(name="SetJobStatusResponse")
    file.message_type.add(name="FetchAuthorizedKeysRequest")
    keys = file.message_type.add(name="FetchAuthorizedKeysResponse")
    keys.field.add(
        name="authorized_keys",
        number=1,
        type=_FIELD.TYPE_STRING,
        label=_FIELD.LABEL_OPTIONAL,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"supervisor.v1alpha1.{name}")
        )
        for name in names
    }


MESSAGES = independent_messages()


def set_status(channel: grpc.Channel, tries: int = TRIES, **fields: Any) -> None:
    call = channel.unary_unary(
        "/supervisor.v1alpha1.JobAPI/SetJobStatus",
        request_serializer=MESSAGES["SetJobStatusRequest"].SerializeToString,
        response_deserializer=MESSAGES["SetJobStatusResponse"].FromString,
    )
    request = MESSAGES["SetJobStatusRequest"](**fields)
    until_stored(lambda: call(request, timeout=deadline(10)), tries)


def test_set_job_status__client_from_independent_descriptors__leaves_the_row(
    site: TlsCallbackServer,
) -> None:
    with site.channel() as channel:
        set_status(channel, name=NAME, id=4242, duration=125, status=8, exit_code=768)
    assert site.rows() == [(NAME, 4242, 8, 125, 768, "here")]


def test_set_job_status__raw_bytes_written_by_hand__leave_the_row(
    site: TlsCallbackServer,
) -> None:
    # field 1, 66 bytes | field 2 varint 300 | field 3 varint 61 | field 4 varint 7 |
    # field 5 varint 256
    raw: Any = (
        b"\x0a\x42"
        + NAME.encode()
        + b"\x10\xac\x02"
        + b"\x18\x3d"
        + b"\x20\x07"
        + b"\x28\x80\x02"
    )
    with site.channel() as channel:
        answer: Any = channel.unary_unary("/supervisor.v1alpha1.JobAPI/SetJobStatus")(
            raw, timeout=deadline(10)
        )
    assert answer == b""
    assert site.rows() == [(NAME, 300, 7, 61, 256, "here")]


def test_set_job_status__defaults_left_out_as_the_spank_plugin_does__is_running(
    site: TlsCallbackServer,
) -> None:
    with site.channel() as channel:
        set_status(channel, name=NAME, id=7, status=4)
    assert site.rows() == [(NAME, 7, 4, 0, 0, "here")]


def test_pings__of_a_client_that_makes_sure_of_its_connection__are_no_offence(
    site: TlsCallbackServer,
) -> None:
    """By itself, gRPC's server ends a connection that is pinged more often than every
    five minutes (too_many_pings).
    """
    eager = [
        ("grpc.keepalive_time_ms", 1200),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
    options = [*eager, ("grpc.http2.max_pings_without_data", 0)]
    credentials = grpc.ssl_channel_credentials(site.ca)
    with (
        Proxy.start(site.address) as network,
        grpc.secure_channel(network.address, credentials, options) as channel,
    ):
        set_status(channel, name=NAME, id=7, status=4)
        before = network.passed[Direction.TO_SERVER]
        six_pings = 6 * (17 + 22)  # bytes of HTTP/2's frame and of TLS's
        wait_until(
            lambda: network.passed[Direction.TO_SERVER] - before >= six_pings,
            "six pings",
            60.0,
        )
        set_status(channel, name=NAME, id=8, status=4)
        assert network.connections == 1


def test_set_job_status__repeat__is_ok_and_one_row(site: TlsCallbackServer) -> None:
    with site.channel() as channel:
        for _ in range(3):
            set_status(channel, name=NAME, id=7, duration=1, status=7)
    assert len(site.rows()) == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"name": "hello"},
            "name: found 'hello'; expected 0x and 64 lowercase hex digits",
        ),
        ({"name": NAME.upper()}, "name: found"),
        ({"name": NAME + "\n"}, "name: found"),
        ({"name": ""}, "name: found ''"),
        ({"id": 0}, "id: found 0; expected a SLURM job id"),
        ({"id": 2**63}, "id: found 9223372036854775808"),
        ({"duration": 2**40}, "duration: found 1099511627776"),
        ({"exit_code": -(2**40)}, "exit_code: found -1099511627776"),
        ({"status": 0}, "status: found JOB_STATUS_UNSPECIFIED"),
        ({"status": 1}, "status: found PENDING"),
        ({"status": 10}, "status: found PANICKED"),
    ],
)
def test_set_job_status__malformed__is_invalid_argument_and_leaves_no_trace(
    site: TlsCallbackServer, fields: dict[str, Any], said: str
) -> None:
    good: dict[str, Any] = {
        "name": NAME,
        "id": 7,
        "duration": 1,
        "status": 7,
        "exit_code": 0,
    }
    with site.channel() as channel, pytest.raises(grpc.RpcError) as caught:
        set_status(channel, **(good | fields))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert said in (caught.value.details() or "")
    assert site.rows() == []


@pytest.mark.parametrize("status", [5, 11, 99])
def test_set_job_status__of_a_plugin_of_another_version__is_accepted_and_ignored(
    site: TlsCallbackServer, status: int
) -> None:
    with site.channel() as channel:
        set_status(channel, name=NAME, id=7, status=status)
    assert site.rows() == []


def test_set_job_status__stored__dispatches_the_poll_of_the_cluster(
    site: TlsCallbackServer,
) -> None:
    with Redis(
        unix_socket_path=site.environment["BROKER_URL"].removeprefix("redis+socket://")
    ) as redis:
        redis.flushall()
        with site.channel() as channel:
            set_status(channel, name=NAME, id=7, status=7)
        wait_until(lambda: bool(redis.llen("here.slurm")), "a message", 5.0)
        message = json.loads(redis.lindex("here.slurm", 0))
    assert message["headers"]["task"] == "supervisor_tasks.tasks.poll_jobs"


def test_fetch_authorized_keys__empty_request__answers_the_restricted_key(
    site: TlsCallbackServer,
) -> None:
    with site.channel() as channel:
        call = channel.unary_unary(
            "/supervisor.v1alpha1.SshAPI/FetchAuthorizedKeys",
            request_serializer=MESSAGES["FetchAuthorizedKeysRequest"].SerializeToString,
            response_deserializer=MESSAGES["FetchAuthorizedKeysResponse"].FromString,
        )
        assert (
            call(
                MESSAGES["FetchAuthorizedKeysRequest"](), timeout=deadline(10)
            ).authorized_keys
            == f"restrict {PUBLIC_LINE}\n"
        )


def test_database_away__unavailable_and_not_serving__back_by_itself(
    site: TlsCallbackServer,
) -> None:
    serving, away = (
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.NOT_SERVING,
    )
    with site.channel() as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="supervisor.v1alpha1.JobAPI")

        def health_is(status: Any) -> Callable[[], bool]:
            return lambda: health.Check(request, timeout=deadline(10)).status == status

        assert health.Check(request, timeout=deadline(10)).status == serving
        site.processes.kill(site.processes.find("postgres"), signal.SIGINT)
        began_s = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            set_status(channel, tries=1, name=NAME, id=7, status=7)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert time.monotonic() - began_s < deadline(5.0)
        wait_until(health_is(away), "NOT_SERVING", 10.0, 0.1)
        start_server(
            site.processes,
            "postgres",
            embedded_servers.postgres(site.processes.folder / "postgres"),
        )
        wait_until(health_is(serving), "SERVING again", 10.0, 0.1)
        set_status(channel, name=NAME, id=7, status=7)
    assert len(site.rows()) == 1


def know(site: TlsCallbackServer, job_id: str, slurm_id: int) -> None:
    """The ledger has the job."""
    job: dict[str, Any] = {
        "cluster": "here",
        "job_id": job_id,
        "slurm_id": slurm_id,
        "state": "RUNNING",
    }
    job |= {"top_ups": [], "definition": {}, "cancel_requested": False}
    job |= dict.fromkeys(
        ("customer", "provider", "claim_key", "grid_logger_url", "status_message"), ""
    )
    job |= dict.fromkeys(
        (
            "time_limit_min",
            "chain_status",
            "chain_block",
            "chain_log_index",
            "poll_count",
        ),
        0,
    )
    with site.engine.begin() as connection:
        connection.execute(insert(METADATA.tables["jobs"]).values(**job))


def run_ages_s(site: TlsCallbackServer) -> dict[str, float]:
    query = "SELECT name, extract(epoch FROM now() - succeeded_at)::float8 AS age_s FROM periodic_runs WHERE cluster = 'here'"
    with site.engine.connect() as connection:
        return {row.name: row.age_s for row in connection.execute(text(query))}


def test_heartbeats__its_own_always__the_reporters_when_one_asks_for_that(
    site: TlsCallbackServer,
) -> None:
    def forgotten() -> None:
        with site.engine.begin() as connection:
            connection.execute(text("DELETE FROM periodic_runs"))

    with site.channel() as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", "supervisor.v1alpha1.JobAPI"):  # a probe is no reporter
            health.Check(
                health_pb2.HealthCheckRequest(service=service), timeout=deadline(10)
            )
            forgotten()
            wait_until(
                lambda: CALLBACKS in run_ages_s(site), "its heartbeat", 60.0, 0.1
            )
            assert set(run_ages_s(site)) == {CALLBACKS, continuous_since_key(CALLBACKS)}
        assert REPORTER_SERVICE == HEARTBEAT_SERVICE
        health.Check(
            health_pb2.HealthCheckRequest(service=HEARTBEAT_SERVICE),
            timeout=deadline(10),
        )
        wait_until(lambda: REPORTER in run_ages_s(site), "the reporter's", 60.0, 0.1)
        for node in ("ctl1", "ctl2"):
            health.Check(
                health_pb2.HealthCheckRequest(service=HEARTBEAT_SERVICE),
                metadata=((proof.NODE, node),),
                timeout=deadline(10),
            )
        both = {reporter_of("ctl1"), reporter_of("ctl2")}
        wait_until(lambda: both <= run_ages_s(site).keys(), "those of both", 60.0, 0.1)
        forgotten()
        wait_until(lambda: CALLBACKS in run_ages_s(site), "its heartbeat", 60.0, 0.1)
        assert not known_reporters(run_ages_s(site))


def test_set_job_status__broker_hung__is_stored_and_answered_at_once(
    site: TlsCallbackServer,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # connects, and never answers
        broker_url = f"redis://127.0.0.1:{mute.getsockname()[1]}/0"
        running, address = site.start(
            "callbacks-mute", TLS_ENABLE="false", BROKER_URL=broker_url
        )
        with grpc.insecure_channel(address) as channel:
            waits_s = []
            for number in range(1, 6):
                began_s = time.monotonic()
                set_status(channel, name=NAME, id=number, status=7)
                waits_s.append(time.monotonic() - began_s)
    assert len(site.rows()) == 5
    assert min(waits_s) < deadline(1.0)
    site.processes.stop(running, patience_s=15.0)


def test_grpc_callbacks__sigterm__ends_with_status_0(site: TlsCallbackServer) -> None:
    environment = site.environment | {"LISTEN_ADDRESS": f"127.0.0.1:{free_port()}"}
    port = int(environment["LISTEN_ADDRESS"].rpartition(":")[2])
    child = subprocess.Popen(
        [sys.executable, "-m", "grpc_callbacks"],
        env=environment,
        cwd=REPOSITORY,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: answers(port), "it to listen", 20.0)
    child.terminate()
    assert child.wait(deadline(20)) == 0


def test_grpc_callbacks__settings_missing__ends_with_status_2_and_names_the_variable(
    tmp_path: Path,
) -> None:
    environment = {"PATH": "/usr/bin:/bin", "STATE_DIR": str(tmp_path)}
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
    (reason,) = reasons(ended.stderr)
    assert reason.startswith("SLURM_SSH_PUBLIC_KEY: found nothing; expected")


def test_callback_store__job_with_many_callbacks__refuses_more_until_settled(
    site: TlsCallbackServer,
) -> None:
    writer = CallbackWriter(
        site.environment["DATABASE_URL"], "here", most=dict.fromkeys(CallbackOrigin, 3)
    )
    know(site, NAME, 7)
    said = [CallbackPayload(NAME, 7, 7, duration_s, 0) for duration_s in range(1, 6)]
    for report in said[:3]:
        asyncio.run(writer.store(report, "test"))
    with pytest.raises(InboxFullError):
        asyncio.run(writer.store(said[3], "test"))
    asyncio.run(writer.store(said[0], "test"))  # which is on disk
    asyncio.run(writer.store(replace(said[3], slurm_id=8), "test"))
    assert [row[1:4] for row in site.rows()] == [
        (7, 7, 1),
        (7, 7, 2),
        (7, 7, 3),
        (8, 7, 4),
    ]
    with site.engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET state = 'SETTLED'"))
    asyncio.run(writer.store(said[3], "test"))
    assert len(site.rows()) == 4
    with site.engine.begin() as connection:
        connection.execute(text("DELETE FROM jobs"))
    writer.close()


def test_callback_writer__unexpected_error__refuses_the_callback_and_goes_on(
    site: TlsCallbackServer,
) -> None:
    writer = CallbackWriter(site.environment["DATABASE_URL"], "here")
    report = CallbackPayload(NAME, 7, 7, 1, 0)
    with pytest.raises(CallbackNotStoredError):
        asyncio.run(
            writer.store(report, "\ud800")
        )  # which has no bytes: the driver raises what is no error of a database
    wait_until(lambda: asyncio.run(writer.is_open()), "the writer to be open", 60.0)
    asyncio.run(writer.store(report, "test"))
    assert len(site.rows()) == 1
    writer.close()


def test_callback_writer__check_whether_it_is_open_fails__answers_no(
    site: TlsCallbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = CallbackWriter(site.environment["DATABASE_URL"], "here")
    with monkeypatch.context() as broken:
        broken.setattr(CallbackStore, "store", lambda *_: 1 / 0)
        assert not asyncio.run(writer.is_open())
    wait_until(lambda: asyncio.run(writer.is_open()), "the writer to be open", 60.0)
    writer.close()
