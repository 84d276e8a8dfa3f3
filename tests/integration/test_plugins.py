"""What runs beside SLURM: its hooks write a spool, the reporter delivers it, sshd asks for the key."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest

from devgrid.process import Processes, free_port, tail, wait_until
from devgrid.slurm import Slurm
from devgrid.state import private_processes
from devgrid.tls import Certificates, make_certificates
from devgrid.users import Users
from plugins.spool import NAME, SpooledEvent, read
from protos.supervisor.v1alpha1.supervisor_pb2 import (
    JOB_STATUS_CANCELLED,
    JOB_STATUS_FAILED,
    JOB_STATUS_FINISHED,
    JOB_STATUS_RUNNING,
    FetchAuthorizedKeysRequest,
    FetchAuthorizedKeysResponse,
    SetJobStatusRequest,
    SetJobStatusResponse,
)
from protos.supervisor.v1alpha1.supervisor_pb2_grpc import (
    JobAPIServicer,
    SshAPIServicer,
    add_JobAPIServicer_to_server,
    add_SshAPIServicer_to_server,
)

CUSTOMER = "0x" + "ab" * 20
KEY = "restrict,pty ssh-ed25519 AAAA supervisor\n"
REPOSITORY = Path(__file__).resolve().parent.parent.parent
AT_ONCE_S = 0.3  # less than the reporter's own look round
PROMPT_S = 1.0
LONGEST_WAIT_S = 2.0


class _Supervisor(JobAPIServicer, SshAPIServicer):
    """Writes down what it is told. `refusals` are given first, one a call."""

    def __init__(self) -> None:
        self.calls: deque[tuple[float, SetJobStatusRequest]] = deque()
        self.refusals: deque[grpc.StatusCode] = deque()
        self.under_way = self.most_under_way = 0
        self.hold = threading.Event()
        self.hold.set()
        self._lock = threading.Lock()

    def SetJobStatus(  # noqa: N802  the method of a gRPC service is named by its protocol
        self, request: SetJobStatusRequest, context: grpc.ServicerContext
    ) -> SetJobStatusResponse:
        with self._lock:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            self.calls.append((time.monotonic(), request))
            refusal = self.refusals.popleft() if self.refusals else None
        self.hold.wait(10.0)
        with self._lock:
            self.under_way -= 1
        if refusal is not None:
            context.abort(refusal, "no such job\nERROR forged")
        return SetJobStatusResponse()

    def FetchAuthorizedKeys(  # noqa: N802
        self,
        request: FetchAuthorizedKeysRequest,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> FetchAuthorizedKeysResponse:
        return FetchAuthorizedKeysResponse(authorized_keys=KEY)

    def told(self, slurm_id: int) -> list[tuple[int, int]]:
        """Status and exit code of each call about a job, in order."""
        return [(call.status, call.exit_code) for _, call in self.calls if call.id == slurm_id]


@contextmanager
def _serving(port: int = 0, certificates: Certificates | None = None) -> Iterator[tuple[_Supervisor, int]]:
    server, service = grpc.server(ThreadPoolExecutor(16)), _Supervisor()
    add_JobAPIServicer_to_server(service, server)
    add_SshAPIServicer_to_server(service, server)
    if certificates is None:
        port = server.add_insecure_port(f"127.0.0.1:{port}")
    else:
        pair = (certificates.key.read_bytes(), certificates.cert.read_bytes())
        port = server.add_secure_port(f"127.0.0.1:{port}", grpc.ssl_server_credentials([pair]))
    server.start()
    try:
        yield service, port
    finally:
        service.hold.set()
        server.stop(None).wait()


# --- from a job to the supervisor ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with private_processes() as processes:
        users = Users(processes.folder)
        users.add(CUSTOMER)
        node_spool = processes.folder / "node-spool"
        node_spool.mkdir()
        running = Slurm.start(processes, users, spool=_new_spool(processes), nodes=1, node_spool=node_spool)
        try:
            yield running
        finally:
            running.stop()


def test_jobs_of_slurm__supervisor_down_at_first__learns_all_in_each_jobs_order(slurm: Slurm) -> None:
    port, spool = free_port(), slurm.processes.folder / "spool"
    _start_reporter(slurm.processes, spool, port)
    done = _submit(slurm, _name(1), "sleep 2")
    failed = _submit(slurm, _name(2), "exit 3")
    killed = _submit(slurm, _name(3), "kill -9 $$")
    waiting = _submit(slurm, _name(4), "true", "--hold")
    stranger = _submit(slurm, _name(5), "true", "--comment=benchmark 127.0.0.1:1")
    named = _submit(slurm, f"{_name(6)}\nevent=ended\nstate=COMPLETED", "true")
    slurm.run("scancel", str(waiting))
    for job in (done, failed, killed, waiting, stranger, named):
        wait_until(partial(_has_ended, slurm, job), f"job {job} to end", 20.0)
    wait_until(lambda: len(_events(spool)) == 8, f"the hooks to have written 8 events: {_events(spool)}", 5.0)
    with _serving(port) as (supervisor, _):
        wait_until(lambda: not _events(spool), "the spool to be empty", 5.0)
    assert supervisor.told(done) == [(JOB_STATUS_RUNNING, 0), (JOB_STATUS_FINISHED, 0)]
    assert supervisor.told(failed) == [(JOB_STATUS_RUNNING, 0), (JOB_STATUS_FAILED, 3 * 256)]
    assert supervisor.told(killed) == [(JOB_STATUS_RUNNING, 0), (JOB_STATUS_FAILED, 9)]
    assert supervisor.told(waiting) == [(JOB_STATUS_CANCELLED, 0)]
    assert supervisor.told(stranger) == [(JOB_STATUS_FINISHED, 0)]  # the completion hook is not told the comment
    assert supervisor.told(named) == []
    durations = [call.duration for _, call in supervisor.calls if call.id == done]
    assert durations[0] == 0
    assert durations[1] in (2, 3)
    assert {call.name for _, call in supervisor.calls if call.id == done} == {_name(1)}


def test_spank_plugin__job_of_the_grid__its_node_tells_the_start_and_the_job_runs(slurm: Slurm) -> None:
    spool = slurm.processes.folder / "node-spool"
    for file in spool.glob("*-start"):
        file.unlink()
    ours = _submit(slurm, _name(11), "echo ran")
    stranger = _submit(slurm, _name(12), "true", "--comment=benchmark 127.0.0.1:1")
    unnamed = _submit(slurm, "0xabc", "true")
    for job in (ours, stranger, unnamed):
        wait_until(partial(_has_ended, slurm, job), f"job {job} to end", 60.0)
    wait_until(lambda: bool(list(spool.glob("*-start"))), "the node's event", 30.0)
    [file] = spool.glob("*-start")
    assert read(file) == SpooledEvent(_name(11), ours, JOB_STATUS_RUNNING)
    assert (slurm.users.home(CUSTOMER) / f"slurm-{ours}.out").read_text() == "ran\n"


@contextmanager
def _away(folder: Path) -> Iterator[None]:
    hidden = folder.rename(folder.with_name(f"{folder.name}-away"))
    try:
        yield
    finally:
        hidden.rename(folder)


def test_spools_of_controller_and_node_missing__the_job_runs_all_the_same(slurm: Slurm) -> None:
    folder = slurm.processes.folder
    with _away(folder / "spool"), _away(folder / "node-spool"):
        job = _submit(slurm, _name(13), "echo ran")
        wait_until(partial(_has_ended, slurm, job), "the job to end", 60.0)
        assert (slurm.users.home(CUSTOMER) / f"slurm-{job}.out").read_text() == "ran\n"
        shown = slurm.run("scontrol", "show", "job", str(job)).stdout
        assert "Restarts=0" in shown
        assert "JobState=COMPLETED" in shown
    log = (slurm.layout.folder / "slurmd-node1.log").read_text()
    assert f"supervisor: the start of SLURM's job {job} is not in" in log


# --- the reporter ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def processes() -> Iterator[Processes]:
    with private_processes() as mine:
        yield mine


@pytest.fixture
def spool(processes: Processes) -> Path:
    return _new_spool(processes)


def test_reporter__event_appears__is_delivered_at_once_and_its_file_removed(processes: Processes, spool: Path) -> None:
    with _serving() as (supervisor, port):
        _start_reporter(processes, spool, port)
        for job in range(1, 6):
            written_s = time.monotonic()
            _write(spool, job, "start")
            wait_until(lambda: not _events(spool), "the event to be delivered", 5.0)
            assert supervisor.told(job) == [(JOB_STATUS_RUNNING, 0)]
        assert supervisor.calls[-1][0] - written_s < AT_ONCE_S


def test_reporter__draft_of_a_hook__is_left_alone(processes: Processes, spool: Path) -> None:
    with _serving() as (supervisor, port):
        (spool / ".1-7-end").write_text("event=ended\n")
        _start_reporter(processes, spool, port)
        _write(spool, 1, "start")
        wait_until(lambda: bool(supervisor.calls), "the other event", 5.0)
        assert (spool / ".1-7-end").exists()
        assert supervisor.told(7) == []


def test_reporter__supervisor_cannot_store_it__tries_again_until_it_is_taken(processes: Processes, spool: Path) -> None:
    _write(spool, 1, "start")
    _write(spool, 1, "end")
    with _serving() as (supervisor, port):
        supervisor.refusals.extend([grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
        _start_reporter(processes, spool, port)
        wait_until(lambda: not _events(spool), "the spool to be empty", 10.0)
        running = (JOB_STATUS_RUNNING, 0)
        assert supervisor.told(1) == [running, running, running, (JOB_STATUS_FAILED, 768)]


def test_reporter__malformed_for_the_supervisor__goes_to_rejected_with_one_log_line(
    processes: Processes, spool: Path
) -> None:
    with _serving() as (supervisor, port):
        supervisor.refusals.append(grpc.StatusCode.INVALID_ARGUMENT)
        file = _write(spool, 1, "start")
        _start_reporter(processes, spool, port)
        wait_until(lambda: (spool / "rejected" / file.name).exists(), "the event to be rejected", 5.0)
        _write(spool, 2, "start")
        wait_until(lambda: not _events(spool), "the next one to be delivered", 5.0)
    assert not file.exists()
    lines = [line for line in tail(processes.logs / "reporter.log").splitlines() if "ERROR rejected" in line]
    assert len(lines) == 1
    assert "no such job" in lines[0]
    assert "\nERROR forged" not in (processes.logs / "reporter.log").read_text()


def test_reporter__file_that_no_hook_wrote__goes_to_rejected(processes: Processes, spool: Path) -> None:
    (spool / "1-1-end").write_text("what is this")
    with _serving() as (supervisor, port):
        _start_reporter(processes, spool, port)
        wait_until(lambda: (spool / "rejected" / "1-1-end").exists(), "the file to be rejected", 5.0)
        assert not supervisor.calls


def test_reporter__killed_before_the_answer__delivers_again_after_its_restart(
    processes: Processes, spool: Path
) -> None:
    with _serving() as (supervisor, port):
        supervisor.hold.clear()
        _start_reporter(processes, spool, port)
        _write(spool, 1, "end")
        wait_until(lambda: len(supervisor.calls) == 1, "the call", 5.0)
        processes.kill(processes.find("reporter"))
        assert len(_events(spool)) == 1
        supervisor.hold.set()
        _start_reporter(processes, spool, port)
        wait_until(lambda: not _events(spool), "the spool to be empty", 5.0)
        assert len(supervisor.told(1)) == 2


def test_reporter__several_jobs__are_under_way_side_by_side(processes: Processes, spool: Path) -> None:
    for job in range(1, 5):
        _write(spool, job, "start")
        _write(spool, job, "end")
    with _serving() as (supervisor, port):
        supervisor.hold.clear()
        _start_reporter(processes, spool, port)
        wait_until(lambda: supervisor.under_way == 4, "four calls under way", 5.0)
        assert {call.status for _, call in supervisor.calls} == {JOB_STATUS_RUNNING}
        supervisor.hold.set()
        wait_until(lambda: not _events(spool), "the spool to be empty", 5.0)
        assert supervisor.most_under_way == 4


def test_reporter__supervisor_back_after_an_outage__hears_within_the_longest_wait(
    processes: Processes, spool: Path
) -> None:
    port = free_port()
    _write(spool, 1, "start")
    _start_reporter(processes, spool, port)
    log = processes.logs / "reporter.log"
    wait_until(lambda: log.read_text().count("next try in 2.0 s") >= 2, "the longest wait to be reached", 20.0)
    with _serving(port) as (supervisor, _):
        back_s = time.monotonic()
        wait_until(lambda: bool(supervisor.calls), "the call", 15.0)
        # the reporter's wait, and that of its channel, which begins anew at most so much later
        assert supervisor.calls[0][0] - back_s < 2 * LONGEST_WAIT_S + PROMPT_S


def test_reporter__outage__its_channel_keeps_trying_to_connect(processes: Processes, spool: Path) -> None:
    _write(spool, 1, "start")
    with socket.create_server(("127.0.0.1", 0)) as closed_shop:
        closed_shop.settimeout(5.0)
        started_s = time.monotonic()
        _start_reporter(processes, spool, closed_shop.getsockname()[1])
        for _ in range(6):
            closed_shop.accept()[0].close()
    assert time.monotonic() - started_s < 5.0  # gRPC by itself: 1.0 + 1.6 + 2.6 + 4.1 + 6.6 s


def test_reporter__tls__trusts_its_own_authority_alone(processes: Processes, spool: Path) -> None:
    ours, theirs = (make_certificates(processes.folder / name) for name in ("tls", "others"))
    _write(spool, 1, "start")
    with _serving(certificates=ours) as (supervisor, port):
        _start_reporter(processes, spool, port, theirs.ca)
        log = processes.logs / "reporter.log"
        wait_until(lambda: "UNAVAILABLE" in log.read_text(), "the reporter to refuse the certificate", 10.0)
        assert not supervisor.calls
        processes.stop(processes.find("reporter"))
        _start_reporter(processes, spool, port, ours.ca)
        wait_until(lambda: not _events(spool), "the spool to be empty", 5.0)
        assert supervisor.told(1) == [(JOB_STATUS_RUNNING, 0)]


def test_reporter__idle__ends_at_once_when_asked(processes: Processes, spool: Path) -> None:
    with _serving() as (_, port):
        _start_reporter(processes, spool, port)
        asked_s = time.monotonic()
        processes.kill(processes.find("reporter"), signal.SIGTERM)
        assert time.monotonic() - asked_s < PROMPT_S


# --- the authorized-keys command ------------------------------------------------------------------------------------------


def test_authorized_keys__over_tls__prints_the_line(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    with _serving(certificates=certificates) as (_, port):
        done = _authorized_keys(port, certificates.ca)
    assert (done.returncode, done.stdout) == (0, KEY)


def test_authorized_keys__certificate_of_another_authority__prints_nothing(tmp_path: Path) -> None:
    ours, theirs = make_certificates(tmp_path / "ours"), make_certificates(tmp_path / "theirs")
    with _serving(certificates=ours) as (_, port):
        done = _authorized_keys(port, theirs.ca)
    assert (done.returncode, done.stdout) == (1, "")
    assert "UNAVAILABLE" in done.stderr


def test_authorized_keys__supervisor_down__says_so_in_one_line() -> None:
    port = free_port()
    done = _authorized_keys(port)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"authorized_keys: 127.0.0.1:{port}: UNAVAILABLE")


# --- acting ---------------------------------------------------------------------------------------------------------------


def _name(number: int) -> str:
    return f"0x{number:064x}"


def _new_spool(processes: Processes) -> Path:
    spool = processes.folder / "spool"
    spool.mkdir()
    return spool


def _events(spool: Path) -> list[str]:
    return sorted(file.name for file in spool.iterdir() if NAME.fullmatch(file.name))


def _write(spool: Path, slurm_id: int, kind: str) -> Path:
    """An event as the hooks write it."""
    text = f"job_id={_name(slurm_id)}\nslurm_id={slurm_id}\n"
    text = (
        "event=started\n" + text
        if kind == "start"
        else "event=ended\n" + text + "state=FAILED\nexit=3:0\nstart_s=5\nend_s=9\n"
    )
    text += "complete=1\n"
    file = spool / f"{time.time_ns()}-{slurm_id}-{kind}"
    draft = spool / f".{file.name}"
    draft.write_text(text)
    return draft.rename(file)


def _start_reporter(processes: Processes, spool: Path, port: int, authority: Path | None = None) -> None:
    options = ["--spool", str(spool), "--supervisor", f"127.0.0.1:{port}"]
    options += [] if authority is None else ["--ca", str(authority)]
    ready: Callable[[], bool] = (spool / "rejected").exists
    processes.start("reporter", [sys.executable, "-m", "plugins.reporter", *options], cwd=REPOSITORY, ready=ready)


def _authorized_keys(port: int, authority: Path | None = None) -> subprocess.CompletedProcess[str]:
    options = ["--supervisor", f"127.0.0.1:{port}"] + ([] if authority is None else ["--ca", str(authority)])
    argv = [sys.executable, "-m", "plugins.authorized_keys", *options]
    return subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=30)


def _submit(slurm: Slurm, name: str, script: str, *options: str) -> int:
    uid = slurm.users.add(CUSTOMER)
    done = subprocess.run(
        ["sbatch", "--parsable", "--mem-per-cpu=100M", f"--job-name={name}", "--comment=supervisor here:1", *options],
        env={"PATH": os.environ["PATH"], **slurm.env()},
        input=f"#!/bin/bash\n{script}\n",
        cwd=slurm.users.home(CUSTOMER),
        user=uid,
        group=uid,
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def _has_ended(slurm: Slurm, job: int) -> bool:
    shown = slurm.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--Format=State:40").stdout.strip()
    return shown in ("COMPLETED", "FAILED", "CANCELLED")
