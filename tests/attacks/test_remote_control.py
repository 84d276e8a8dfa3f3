"""A program that reaches Redis, Flower or its port tries to steer the workers, or to
have them run its code.
"""

import base64
import http.client
import json
import os
import pickle
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from celery import Celery
from redis import Redis
from redis.exceptions import AuthenticationError

from devgrid import REPOSITORY
from devgrid.fleet import CELERY, Fleet
from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import Processes, answers, wait_until
from devgrid.services.start import start_server
from devgrid.tls import Certificates, make_certificates
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.config.settings import load
from supervisor_tasks.observability.remote_control import PERIOD_S
from tests.support.ports import random_job_id, report
from tests.support.refusals import reasons
from tests.support.submission_env import new_key

PATIENCE_S = 60.0
MIB = 2**20
TASK = "supervisor_tasks.tasks.dispatch_due_effects"
COMMANDS: dict[str, dict[str, Any]] = {
    "shutdown": {},
    "cancel_consumer": {"queue": "main.default"},
    "add_consumer": {"queue": "elsewhere"},
    "pool_grow": {"n": 5},
    "pool_shrink": {"n": 15},
    "pool_restart": {},
    "autoscale": {"max": 1, "min": 1},
    "rate_limit": {"task_name": TASK, "rate_limit": "1/h"},
    "time_limit": {"task_name": TASK, "hard": 1, "soft": 1},
    "revoke": {"task_id": ["a"], "terminate": True},
    "revoke_by_stamped_headers": {"headers": {"a": "b"}},
    "terminate": {"signal": "KILL", "task_id": "a"},
    "election": {"id": "a", "topic": "task", "action": None},
    "disable_events": {},
    "objgraph": {},
    "memdump": {},
    "hello": {"from_node": "liar@nowhere", "revoked": {"revoked-by-hello": 1.0}},
}
"""Commands that change a worker, with arguments that would."""


@pytest.fixture(scope="module")
def fleet(processes: Processes) -> Fleet:
    described = {}
    for name, describe in (
        ("postgres", embedded_servers.postgres),
        ("redis", embedded_servers.redis),
    ):
        (processes.folder / name).mkdir()
        described[name] = describe(processes.folder / name)
        start_server(processes, name, described[name])
    environment = {
        "PATH": os.defpath,
        "HOME": str(processes.folder),
        "STATE_DIR": str(processes.folder),
        "DATABASE_URL": described["postgres"].url,
        "BROKER_URL": described["redis"].url,
    }
    fleet = Fleet(processes, environment)
    fleet.migrate()
    return fleet


@pytest.fixture(scope="module")
def worker(fleet: Fleet) -> Iterator[Celery]:
    """The worker, controlled as another program would."""
    fleet.start_worker("worker", "-Q", "main.default")
    app = Celery(broker=fleet.environment["BROKER_URL"])
    wait_until(
        lambda: bool(app.control.ping(timeout=1.0)),
        "the worker to answer",
        PATIENCE_S,
        0.1,
    )
    yield app
    app.close()


def state_of(app: Celery) -> dict[str, Any]:
    """The state that a command could have changed. There is one worker: the wait ends
    with its answer (`limit`).
    """
    asked = app.control.inspect(timeout=30.0, limit=1)
    (queues,), (stats,), (revoked,) = (
        list((answer or {"": None}).values())
        for answer in (asked.active_queues(), asked.stats(), asked.revoked())
    )
    return {
        "queues": [queue["name"] for queue in queues],
        "pool": stats["pool"]["max-concurrency"],
        "revoked": revoked,
    }


def test_commands_that_change_a_worker__broadcast__are_refused(
    worker: Celery, fleet: Fleet
) -> None:
    before, pid = state_of(worker), fleet.find("worker").pid
    for name, arguments in COMMANDS.items():
        worker.control.broadcast(name, arguments=arguments)
    assert state_of(worker) == before
    assert before["revoked"] == []
    assert fleet.find("worker").pid == pid
    does_its_work(worker, "main.default")


def test_remote_control__refused_a_hundred_times__writes_a_few_short_log_lines(
    worker: Celery, fleet: Fleet
) -> None:
    log = fleet.processes.logs / "worker.log"
    written = log.stat().st_size
    began_s = time.monotonic()
    for _ in range(100):
        worker.control.broadcast("shutdown")
        worker.control.broadcast("shut\nERROR down" * 1000)
        worker.control.broadcast("ping", arguments={"unknown": "x" * 10_000})
    # the worker has read all messages before this question
    assert state_of(worker)["pool"] > 0
    with log.open("rb") as file:
        file.seek(written)
        lines = file.read().decode().splitlines()
    assert not [line for line in lines if "Traceback" in line]
    refused = [
        line
        for line in lines
        if "refused" in line or "KeyError" in line or "pidbox" in line
    ]
    assert len(refused) <= 1 + (time.monotonic() - began_s) / PERIOD_S
    assert "control message refused" in log.read_text()
    assert max(map(len, lines), default=0) < 1000


def test_pickle__in_a_message__is_refused_and_runs_nothing(
    worker: Celery, fleet: Fleet, tmp_path: Path
) -> None:
    trace = tmp_path / "code of the attacker ran"
    for content_type in ("application/x-python-serialize", "application/json"):
        put_into_queue(fleet, pickle.dumps(Bomb(trace)), content_type)
    does_its_work(worker, "main.default")
    assert not trace.exists()


def test_message__compressed_to_a_thousandth__is_refused_before_it_is_unpacked(
    worker: Celery, fleet: Fleet
) -> None:
    packed = zlib.compress(bytes(600 * MIB))
    before_kib = peak_kib(fleet)
    for name in ("gzip", "application/x-gzip"):
        put_into_queue(fleet, packed, "application/json", compression=name)
    does_its_work(worker, "main.default")
    assert peak_kib(fleet) - before_kib < 100 * 1024


def peak_kib(fleet: Fleet) -> int:
    """The most memory that the worker has had."""
    status = Path(f"/proc/{fleet.find('worker').pid}/status").read_text()
    (peak,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(peak.split()[1])


def put_into_queue(
    fleet: Fleet, body: bytes, content_type: str, **headers: str
) -> None:
    message: dict[str, Any] = {
        "body": base64.b64encode(body).decode(),
        "content-type": content_type,
        "content-encoding": "binary",
        "headers": {"task": TASK, "id": content_type, "lang": "py", **headers},
        "properties": {
            "delivery_tag": content_type,
            "delivery_info": {},
            "body_encoding": "base64",
        },
    }
    socket_path = fleet.environment["BROKER_URL"].removeprefix("redis+socket://")
    with Redis(unix_socket_path=socket_path) as redis:
        redis.lpush("main.default", json.dumps(message))


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self._trace}'",)


# --- Flower ---------------------------------------------------------------------------


def asked(port: int, method: str, path: str, password: str = "") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=deadline(10))
    headers = (
        {"Authorization": f"Basic {base64.b64encode(password.encode()).decode()}"}
        if password
        else {}
    )
    try:
        connection.request(method, path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_flower__control_and_task_requests__are_refused(
    worker: Celery, fleet: Fleet
) -> None:
    """Even if an operator has opened the API without a password."""
    opened = Fleet(
        fleet.processes,
        fleet.environment | {"FLOWER_UNAUTHENTICATED_API": "true"},
        "opened-",
    )
    running = opened.start_flower()
    try:
        opened.wait_for_flower()
        (name,) = worker.control.inspect(timeout=30.0, limit=1).ping() or {}
        before = state_of(worker)
        paths = [
            f"worker/shutdown/{name}",
            f"worker/pool/restart/{name}",
            f"worker/pool/grow/{name}?n=3",
            f"worker/pool/shrink/{name}?n=3",
            f"worker/pool/autoscale/{name}?min=1&max=1",
            f"worker/queue/cancel-consumer/{name}?queue=main.default",
            f"worker/queue/add-consumer/{name}?queue=elsewhere",
            f"task/rate-limit/{TASK}?workername={name}&ratelimit=1/h",
            f"task/timeout/{TASK}?workername={name}&hard=1",
            "task/revoke/a?terminate=true",
            "task/abort/a",
            f"task/async-apply/{TASK}",
            f"task/apply/{TASK}",
            f"task/send-task/{TASK}",
        ]
        assert {
            asked(opened.flower_port, "POST", f"/api/{path}") for path in paths
        } == {403}
        assert state_of(worker) == before
        assert asked(opened.flower_port, "GET", "/workers") == 200
    finally:
        fleet.processes.stop(running)


def test_flower__listens_on_this_machine_alone__unless_asked(fleet: Fleet) -> None:
    running = fleet.start_flower()
    try:
        fleet.wait_for_flower()
        assert addresses_of(fleet, "flower") == ["127.0.0.1"]
    finally:
        fleet.processes.stop(running)


def addresses_of(fleet: Fleet, name: str) -> list[str]:
    """The addresses at which a process of the fleet listens."""
    process: Any = fleet.find(name).process()
    return [
        entry.laddr.ip
        for entry in process.net_connections()
        if entry.status == "LISTEN"
    ]


@pytest.mark.parametrize(
    "given", [{}, {"FLOWER_BASIC_AUTH": ""}], ids=["none", "empty"]
)
@pytest.mark.parametrize("address", ["0.0.0.0", "::", "*"])  # noqa: S104
def test_flower__elsewhere_without_a_password__does_not_start(
    fleet: Fleet, address: str, given: dict[str, str]
) -> None:
    """Flower itself would read an empty variable as a login with an empty name and
    password, which every caller can send.
    """
    argv = [*CELERY, "flower", f"--address={address}", f"--port={free_port()}"]
    done = subprocess.run(
        argv,
        cwd=REPOSITORY,
        env=fleet.environment | given,
        capture_output=True,
        text=True,
        timeout=deadline(PATIENCE_S),
    )
    assert done.returncode == 2, done.stderr
    (reason,) = reasons(done.stderr)
    assert reason.startswith(
        f"--address: found '{address}' and no password; expected 127.0.0.1"
    )


def test_flower__login_without_name_and_password__does_not_start(fleet: Fleet) -> None:
    argv = [*CELERY, "flower", "--address=0.0.0.0", f"--port={free_port()}"]
    done = subprocess.run(
        [*argv, "--basic_auth=operator:correct-horse,:"],
        cwd=REPOSITORY,
        env=fleet.environment,
        capture_output=True,
        text=True,
        timeout=deadline(PATIENCE_S),
    )
    assert done.returncode == 2, done.stderr
    assert "correct-horse" not in done.stderr
    (reason,) = reasons(done.stderr)
    assert reason == (
        "--basic_auth: found a login without a name or a password; expected user:password"
    )


def test_flower__elsewhere_with_a_password__asks_for_it(
    fleet: Fleet, tmp_path: Path
) -> None:
    secret, port = tmp_path / "password", free_port()
    secret.write_text("operator:correct-horse,second:battery:staple\n")
    argv = [
        *CELERY,
        "flower",
        "--address=*",
        f"--port={port}",
        "--logging=warning",
    ]
    environment = fleet.environment | {"FLOWER_BASIC_AUTH_FILE": str(secret)}
    running = fleet.processes.start(
        "guarded",
        argv,
        env=environment,
        cwd=REPOSITORY,
        ready=lambda: answers(port),
        timeout_s=PATIENCE_S,
    )
    try:
        pages = [
            "/",
            "/workers",
            "/tasks",
            "/broker",
            "/worker/a",
            "/task/a",
            "/tasks/datatable",
            "/metrics",
        ]
        for path in (*pages, "/api/workers", "/api/tasks"):
            assert asked(port, "GET", path) == 401, path
        process = running.process()
        assert process is not None
        listening = {
            entry.laddr.ip
            for entry in process.net_connections()
            if entry.status == "LISTEN"
        }
        assert "0.0.0.0" in listening  # noqa: S104
        assert asked(port, "GET", "/healthcheck") == 200  # which answers only "OK"
        assert asked(port, "GET", "/workers", "operator:wrong") == 401
        for login in ("operator:correct-horse", "second:battery:staple"):
            assert (
                asked(port, "GET", "/workers", login)
                == asked(port, "GET", "/metrics", login)
                == 200
            )
    finally:
        fleet.processes.stop(running)


def test_metrics__listen_on_this_machine_alone__unless_asked(fleet: Fleet) -> None:
    assert load(environment={}).metrics_address == "127.0.0.1:9464"
    port = free_port()
    running = fleet.processes.start(
        "metrics",
        [sys.executable, "-m", "supervisor_tasks.cli", "metrics"],
        env=fleet.environment | {"METRICS_ADDRESS": f"127.0.0.1:{port}"},
        cwd=REPOSITORY,
    )
    try:
        wait_until(lambda: answers(port), "the metrics", PATIENCE_S, 0.1)
        assert addresses_of(fleet, "metrics") == ["127.0.0.1"]
    finally:
        fleet.processes.stop(running)


# --- Redis ----------------------------------------------------------------------------


@pytest.fixture
def guarded_redis(processes: Processes, tmp_path: Path) -> tuple[str, Certificates]:
    """A Redis that speaks TLS, requires a client certificate, and has one user with the
    rights that the fleet needs.
    """
    certificates, port = make_certificates(tmp_path / "tls"), free_port()
    acl = (
        "user supervisor on >correct-horse ~* &* +@all -@admin -@dangerous +info +keys"
    )
    options = {
        "--port": "0",
        "--tls-port": str(port),
        "--bind": "127.0.0.1",
        "--tls-cert-file": str(certificates.cert),
        "--tls-key-file": str(certificates.key),
        "--tls-ca-cert-file": str(certificates.ca),
        "--tls-auth-clients": "yes",
        "--save": "",
        "--dir": str(tmp_path),
    }
    conf = tmp_path / "redis.conf"
    conf.write_text("\n".join(["user default off", acl, ""]))
    argv = [
        "redis-server",
        str(conf),
        *(word for pair in options.items() for word in pair),
    ]
    processes.start("tls-redis", argv, ready=lambda: answers(port))
    return f"rediss://supervisor:correct-horse@127.0.0.1:{port}/0", certificates


def test_redis__with_tls_and_a_user__carries_tasks_and_refuses_strangers(
    processes: Processes,
    fleet: Fleet,
    guarded_redis: tuple[str, Certificates],
    tmp_path: Path,
) -> None:
    """Each process of the fleet has a client of its own."""
    (url, certificates), ssh_key = guarded_redis, new_key(tmp_path / "key")
    environment = fleet.environment | {
        "BROKER_URL": url,
        "BROKER_CA": str(certificates.ca),
        "BROKER_CERT": str(certificates.cert),
        "BROKER_KEY": str(certificates.key),
        "CLUSTER_NAME": "guarded",
        "LISTEN_ADDRESS": f"127.0.0.1:{free_port()}",
        "SLURM_SSH_PUBLIC_KEY": ssh_key.with_suffix(".pub").read_text(),
    }
    guarded = Fleet(processes, environment, "guarded-")
    guarded.start_worker("worker", "-Q", "guarded.default")
    guarded.start_beat()
    guarded.start_callbacks(wait=False)
    guarded.start_flower()
    tls = {
        "ssl_ca_certs": str(certificates.ca),
        "ssl_certfile": str(certificates.cert),
        "ssl_keyfile": str(certificates.key),
    }
    app = Celery(
        broker=url,
        broker_use_ssl=embedded_servers.broker_tls(load(environment=environment)),
    )
    try:
        wait_until(
            lambda: bool(app.control.ping(timeout=1.0)),
            "the worker to answer",
            PATIENCE_S,
            0.1,
        )
        does_its_work(app, "guarded.default")
        guarded.wait_for_callbacks()
        processes.stop(guarded.find("beat"))  # it sends to this queue, too
        with (
            grpc.insecure_channel(environment["LISTEN_ADDRESS"]) as channel,
            Redis.from_url(url, **tls) as redis,
        ):
            redis.delete("guarded.slurm")
            report(channel, random_job_id())
            wait_until(
                lambda: redis.llen("guarded.slurm") > 0,
                "the message of the gRPC process",
                PATIENCE_S,
                0.1,
            )
        guarded.wait_for_flower()
        wait_until(
            lambda: bool(guarded.shown_workers()),
            "Flower to show the worker",
            PATIENCE_S,
            0.2,
        )
    finally:
        app.close()
        for name in ("worker", "callbacks", "flower"):
            processes.kill(guarded.find(name))
    host = url.rpartition("@")[2]
    stranger = Redis.from_url(f"rediss://{host}", **tls)
    with stranger, pytest.raises(AuthenticationError):
        stranger.ping()


def does_its_work(app: Celery, queue: str) -> None:
    def handled() -> int:
        stats = app.control.inspect(timeout=30.0, limit=1).stats() or {}
        return sum(sum(entry["total"].values()) for entry in stats.values())

    before = handled()
    app.send_task(TASK, queue=queue)
    wait_until(
        lambda: handled() > before, "the worker to do another task", PATIENCE_S, 0.2
    )
