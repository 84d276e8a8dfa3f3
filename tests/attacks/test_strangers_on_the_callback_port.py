"""Strangers reach the callbacks' port: if a proof is required they leave no trace;
otherwise they cause no bill.
"""

import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import wait_until
from devgrid.tls import make_certificates
from grpc_callbacks.server import REPORTER_SERVICE
from plugins import proof
from plugins.channel import SupervisorTarget, open_channel
from protos.supervisor.v1alpha1 import supervisor_pb2 as messages
from protos.supervisor.v1alpha1 import supervisor_pb2_grpc as services
from supervisor_tasks.jobs.model import JobId, SlurmId
from supervisor_tasks.ledger.callbacks import CallbackReader
from supervisor_tasks.ledger.periodic_run_names import CALLBACKS
from supervisor_tasks.ledger.periodic_runs import PeriodicRuns
from tests.support.ports import (
    CallbackSite,
    Port,
    answer_to,
    keys_for,
    random_job_id,
    report,
    started_site,
)

OK, DENIED, UNPROVEN = (
    grpc.StatusCode.OK,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
)
SET_STATUS = "/supervisor.v1alpha1.JobAPI/SetJobStatus"
STRANGERS_CALLS = 300
CUSTOMER = "0x" + "a" * 40


@pytest.fixture(scope="module")
def site() -> Iterator[CallbackSite]:
    with started_site() as started:
        yield started


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _key(tmp_path_factory.mktemp("key") / "callback.key")


@pytest.fixture(scope="module")
def strict_port(site: CallbackSite, key_file: Path) -> Port:
    """A port that requires a proof."""
    return site.start(
        "strict",
        CALLBACK_KEY_FILE=str(key_file),
        CALLBACK_PROOF="required",
        CLUSTER_NAME="strict",
    )


@pytest.fixture(scope="module")
def lenient_port(site: CallbackSite, key_file: Path) -> Port:
    """A port of a site that has a key, and also uses plugins without one."""
    return site.start(
        "lenient", CALLBACK_KEY_FILE=str(key_file), CLUSTER_NAME="lenient"
    )


@pytest.fixture(autouse=True)
def _nothing_said(site: CallbackSite) -> None:
    site.do("DELETE FROM callbacks")
    site.do("DELETE FROM periodic_runs")


def _key(file: Path) -> Path:
    file.touch(mode=0o600)
    file.write_text(secrets.token_hex(32))
    return file


@contextmanager
def proving(port: Port, key_file: Path) -> Iterator[grpc.Channel]:
    with open_channel(SupervisorTarget(port.address, key_file=key_file)) as channel:
        yield channel


def check(channel: grpc.Channel, service: str = "") -> grpc.StatusCode:
    health: Any = health_pb2_grpc.HealthStub(channel)
    try:
        health.Check(
            health_pb2.HealthCheckRequest(service=service), timeout=deadline(10)
        )
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return OK


def signs(site: CallbackSite) -> int:
    """Count the reporters that have sent a heartbeat."""
    return site.number_of(
        "SELECT count(*) FROM periodic_runs WHERE name LIKE 'reporter%' AND name NOT LIKE '% without a gap'"
    )


def wait_for_next_heartbeat(site: CallbackSite, cluster: str) -> None:
    """Wait until the calls that the port of that cluster has received are in the
    ledger, if they belong there.
    """
    own = "FROM periodic_runs WHERE name = :name AND cluster = :cluster"
    about = {"name": CALLBACKS, "cluster": cluster}
    for which in ("the next heartbeat", "the heartbeat after that"):
        site.do(f"DELETE {own}", **about)
        wait_until(
            lambda: site.number_of(f"SELECT count(*) {own}", **about) == 1,
            which,
            60.0,
            0.1,
        )


def test_stranger__proof_is_required__leaves_no_row_no_heartbeat_and_few_log_lines(
    site: CallbackSite, strict_port: Port
) -> None:
    with grpc.insecure_channel(strict_port.address) as channel:
        answers = {answer_to(channel, random_job_id()) for _ in range(STRANGERS_CALLS)}
        assert answers | {check(channel), check(channel, REPORTER_SERVICE)} == {
            UNPROVEN
        }
        with pytest.raises(grpc.RpcError) as caught:
            services.SshAPIStub(channel).FetchAuthorizedKeys(
                messages.FetchAuthorizedKeysRequest(), timeout=deadline(10)
            )
        assert caught.value.code() is UNPROVEN
    wait_for_next_heartbeat(site, "strict")
    assert (site.rows(), signs(site)) == (0, 0)
    assert 1 <= strict_port.log.count("stranger_refused") < 20


def test_our_own_programs__where_a_proof_is_required__are_heard(
    site: CallbackSite, strict_port: Port, key_file: Path, tmp_path: Path
) -> None:
    """The authorized-keys command is a copy of its single file, as on a login node."""
    with proving(strict_port, key_file) as channel:
        report(channel, random_job_id())
        assert check(channel, REPORTER_SERVICE) is OK
    wait_until(lambda: signs(site) == 1, "the reporter's heartbeat", 60.0, 0.1)
    assert site.number_of("SELECT count(*) FROM callbacks WHERE proof = 'proven'") == 1
    alone = shutil.copy(REPOSITORY / "plugins" / "authorized_keys.py", tmp_path)
    program = [
        sys.executable,
        "-I",
        "-S",
        str(alone),
        "--supervisor",
        strict_port.address,
        "--plain-text",
    ]
    argv = [*program, "--key", str(key_file), CUSTOMER]
    answers = list[subprocess.CompletedProcess[str]]()

    def has_keys() -> bool:
        answers.append(
            subprocess.run(
                argv, cwd=tmp_path, capture_output=True, text=True, timeout=deadline(60)
            )
        )
        # it gives up within a second, which a busy machine may need for an answer
        assert "did not answer in time" in answers[-1].stderr or answers[-1].stdout
        return answers[-1].stdout.startswith("restrict ssh-ed25519 ")

    wait_until(has_keys, "the keys", 20.0, 0.1)


def answer_with_metadata(
    channel: grpc.Channel, raw: bytes, entries: tuple[tuple[str, str], ...]
) -> grpc.StatusCode:
    """Send a callback with these entries of metadata. Returns the status of the
    answer.
    """
    call: Any = channel.unary_unary(SET_STATUS)
    try:
        call(raw, metadata=entries, timeout=deadline(10))
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return OK


def a_callback() -> bytes:
    request = messages.SetJobStatusRequest(
        name=random_job_id(), id=7, status=messages.JOB_STATUS_RUNNING
    )
    return request.SerializeToString()


def sealed(
    key: bytes, raw: bytes, ago_s: float = 0.0, node: str = "node1"
) -> tuple[tuple[str, str], ...]:
    time_ms = int((time.time() - ago_s) * 1000)
    return (
        (proof.NODE, node),
        (proof.TIME, str(time_ms)),
        (proof.PROOF, proof.seal(key, SET_STATUS, raw, time_ms, node)),
    )


def test_proof__wrong_though_none_is_required__is_refused(
    site: CallbackSite, lenient_port: Port, key_file: Path
) -> None:
    """Even if no proof is required: a wrong key is refused, and not treated as no
    key.
    """
    key, raw = proof.read_key(key_file), a_callback()
    good = sealed(key, raw)
    wrong = (
        sealed(key[::-1], raw),
        sealed(key, raw, ago_s=301),
        sealed(key, raw, ago_s=-310),
        sealed(key, a_callback()),  # of another message
        (("supervisor-node", "node2"), *good[1:]),
        ((proof.PROOF, good[2][1]),),
    )
    with grpc.insecure_channel(lenient_port.address) as channel:
        answers = [answer_with_metadata(channel, raw, entries) for entries in wrong]
        assert answers == [UNPROVEN] * len(wrong)
        assert site.rows() == 0
        assert answer_with_metadata(channel, raw, good) is OK


def test_repeat__within_five_minutes__changes_nothing(
    site: CallbackSite, strict_port: Port, key_file: Path
) -> None:
    """A repeated callback is one row; a repeated heartbeat of the reporter is none."""
    key, raw = proof.read_key(key_file), a_callback()
    again = sealed(key, raw, ago_s=1)
    method, question = (
        "/grpc.health.v1.Health/Check",
        health_pb2.HealthCheckRequest(service=REPORTER_SERVICE).SerializeToString(),
    )
    entries = proof.metadata(key, method, question)
    with grpc.insecure_channel(strict_port.address) as channel:
        assert [answer_with_metadata(channel, raw, again) for _ in range(3)] == [OK] * 3
        assert site.rows() == 1
        ask: Any = channel.unary_unary(method)
        ask(question, metadata=entries, timeout=deadline(10))
        wait_until(lambda: signs(site) == 1, "the reporter's heartbeat", 60.0, 0.1)
        site.do("DELETE FROM periodic_runs")
        ask(question, metadata=entries, timeout=deadline(10))
    wait_for_next_heartbeat(site, "strict")
    assert signs(site) == 0


def test_copy__sent_before_the_hooks_own_callback__takes_nothing_from_its_proof(
    site: CallbackSite, lenient_port: Port, key_file: Path
) -> None:
    """The customer knows how long his job will sleep, and sends its end when it begins.
    An end counts if the job can have run so long before it was received.
    """
    key, job_id = proof.read_key(key_file), random_job_id()
    site.insert_job(job_id, 7, cluster="lenient")
    ends = [
        messages.SetJobStatusRequest(
            name=job_id, id=7, status=messages.JOB_STATUS_FINISHED, duration=seconds
        ).SerializeToString()
        for seconds in (3600, 3601)
    ]
    with grpc.insecure_channel(lenient_port.address) as channel:
        assert [answer_with_metadata(channel, raw, ()) for raw in ends] == [OK] * 2
        site.do("UPDATE callbacks SET received_at = now() - interval '1 hour'")
        assert answer_with_metadata(channel, ends[0], sealed(key, ends[0])) is OK
    callbacks = CallbackReader(
        site.engine, "lenient", PeriodicRuns(site.engine, "lenient")
    )
    seen = callbacks.about({JobId(job_id): SlurmId(7)})[JobId(job_id)]
    assert [(one.duration_s, one.proven) for one in seen] == [
        (3601, False),
        (3600, True),
    ]
    assert seen[1].received_s - seen[0].received_s > 3500


def test_stranger__site_with_a_key__is_no_reporter_and_its_callbacks_are_unproven(
    site: CallbackSite, lenient_port: Port
) -> None:
    with grpc.insecure_channel(lenient_port.address) as channel:
        report(channel, random_job_id())
        assert check(channel, REPORTER_SERVICE) is OK
    wait_for_next_heartbeat(site, "lenient")
    assert signs(site) == 0
    assert (
        site.number_of("SELECT count(*) FROM callbacks WHERE proof = 'unproven'") == 1
    )


def test_callback__stranger_and_our_own_program_say_it__is_our_programs(
    site: CallbackSite, lenient_port: Port, key_file: Path
) -> None:
    name = random_job_id()
    with grpc.insecure_channel(lenient_port.address) as channel:
        report(channel, name)
    with proving(lenient_port, key_file) as channel:
        report(channel, name)
    # a repeat changes the row of a job of ours that was read long ago
    site.insert_job(name, slurm_id=7, cluster="lenient")
    site.do(
        "UPDATE callbacks SET unknown_job = false, read_at = now() - interval '1 day'"
    )
    unread = "SELECT count(*) FROM callbacks WHERE read_at IS NULL"
    with grpc.insecure_channel(lenient_port.address) as channel:
        report(channel, name)
    assert site.number_of(unread) == 0
    with proving(lenient_port, key_file) as channel:
        report(channel, name)
    assert site.number_of(unread) == 1
    assert (
        site.rows(),
        site.number_of("SELECT count(*) FROM callbacks WHERE proof = 'proven'"),
    ) == (1, 1)


DENIED_ONCE = 'supervisor_callbacks_received_total{cluster="here",verdict="denied"} 1.0'


def metrics(address: str) -> list[str]:
    """The lines of a process's metrics."""
    with urllib.request.urlopen(
        f"http://{address}/metrics", timeout=deadline(5)
    ) as answer:
        page: bytes = answer.read()
    return page.decode().splitlines()


def test_callers__of_other_networks__are_denied_and_leave_no_trace(
    site: CallbackSite, key_file: Path
) -> None:
    pages = f"127.0.0.1:{free_port()}"
    port = site.start(
        "networks",
        CALLBACK_KEY_FILE=str(key_file),
        CALLBACK_NETWORKS="127.0.0.64/26, fd00::/8",
        HEALTH_ADDRESS=pages,
    )
    with grpc.insecure_channel(port.address) as channel:
        assert answer_to(channel, random_job_id()) is DENIED
        assert check(channel, REPORTER_SERVICE) is DENIED
    assert (site.rows(), signs(site)) == (0, 0)
    # the question about its health was no callback
    assert DENIED_ONCE in metrics(pages)
    # it comes from one of the networks
    assert keys_for(port, "127.0.0.65").startswith("restrict ")
    # it comes from elsewhere, and is known by its key
    with proving(port, key_file) as channel:
        report(channel, random_job_id())
    assert site.rows() == 1


def test_plain_text__port_open_to_other_machines__is_a_warning_at_the_start(
    site: CallbackSite,
) -> None:
    log = site.start("everywhere", host="0.0.0.0").log  # noqa: S104
    assert "callbacks_in_plain_text" in log
    assert "every machine between SLURM's and this one can read what plugins say" in log
    assert "callbacks_in_plain_text" not in site.start("loopback").log


def test_our_own_programs__plain_text_to_another_machine__refuse_and_name_the_option(
    tmp_path: Path,
) -> None:
    for program, more in (
        ("reporter", ["--spool", str(tmp_path)]),
        ("authorized_keys", ["--plain-text", CUSTOMER]),
    ):
        argv = [
            sys.executable,
            "-m",
            f"plugins.{program}",
            "--supervisor",
            "192.0.2.1:3000",
            *more,
        ]
        done = subprocess.run(
            argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=deadline(60)
        )
        assert done.returncode != 0
        assert "--plain-text-beyond-loopback" in done.stderr
        assert done.stdout == ""


def test_our_own_programs__proxy_in_the_environment__call_this_machine_without_it(
    site: CallbackSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = site.start("beside a proxy")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    with open_channel(SupervisorTarget(port.address)) as channel:
        report(channel, random_job_id())
    assert site.rows() == 1


def test_plain_port__tls_client_connects__is_a_warning_with_both_names(
    site: CallbackSite,
) -> None:
    port = site.start("plain", PUBLIC_ADDRESS="supervisor.example.org:3000")
    context = ssl.create_default_context()
    with (
        socket.create_connection(("127.0.0.1", port.number), 10) as connection,
        pytest.raises(OSError),  # noqa: PT011
    ):
        context.wrap_socket(connection, server_hostname="slurm.example.org")
    wait_until(lambda: "tls_at_a_plain_port" in port.log, "the warning", 20.0)
    line = next(line for line in port.log.splitlines() if "tls_at_a_plain_port" in line)
    assert "slurm.example.org" in line
    assert "supervisor.example.org:3000" in line


def test_certificate__of_another_host__is_a_warning_with_both_names(
    site: CallbackSite,
) -> None:
    port = site.start("named", **site.tls, PUBLIC_ADDRESS="supervisor.example.org:3000")
    line = next(
        line for line in port.log.splitlines() if "certificate_of_another_host" in line
    )
    assert "supervisor.example.org:3000" in line
    assert "localhost" in line
    assert "certificate_of_another_host" not in site.start("right", **site.tls).log


def shown(port: Port) -> bytes:
    """The certificate that the port shows at present."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    where = "127.0.0.1", port.number
    with (
        socket.create_connection(where, 10) as connection,
        context.wrap_socket(connection) as encrypted,
    ):
        return encrypted.getpeercert(binary_form=True) or b""


def test_certificate_files__changed__are_shown_without_a_restart(
    site: CallbackSite, tmp_path: Path
) -> None:
    before, after = (
        make_certificates(tmp_path / "before"),
        make_certificates(tmp_path / "after"),
    )
    port = site.start(
        "renewed", TLS_ENABLE="true", TLS_CERT=str(before.cert), TLS_KEY=str(before.key)
    )
    first = shown(port)
    shutil.copy(after.cert, before.cert)  # which does not fit the key yet
    assert shown(port) == first
    shutil.copy(after.key, before.key)
    assert shown(port) not in (first, b"")
    credentials = grpc.ssl_channel_credentials(after.ca.read_bytes())
    with grpc.secure_channel(port.address, credentials) as channel:
        report(channel, random_job_id())
    assert "certificate_rejected" in port.log
