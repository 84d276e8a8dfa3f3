"""The imitation of the upstream plugins on a real SLURM: what it tells, to which
address, and of what it says nothing.
"""

import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from devgrid import REPOSITORY
from devgrid.cluster.linux_users import Users
from devgrid.cluster.slurm import Slurm
from devgrid.faults import upstream_plugin
from devgrid.faults.network_proxy import Fault, Proxy
from devgrid.faults.upstream_plugin import InSlurm, send, upstream_report
from devgrid.machine import deadline
from devgrid.processes import Processes, wait_until
from devgrid.state_folder import private_processes
from devgrid.tls import make_certificates
from plugins import spool
from plugins.spool import (
    CANCELLED,
    FAILED,
    FINISHED,
    OUT_OF_CREDITS,
    RUNNING,
    SpooledEvent,
)
from protos.supervisor.v1alpha1.supervisor_pb2 import SetJobStatusRequest
from tests.support.spool_env import Supervisor, name_of, new_spool, serving

CUSTOMER = "0x" + "2" * 40
PATIENCE_S = 60.0
GATE = "until [ -e {gate} ]; do sleep 0.1; done\n"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A SLURM, the imitation, and the supervisor that it tells."""

    slurm: Slurm
    supervisor: Supervisor
    comment: str
    spool: Path

    def submit(self, number: int, script: str, *options: str, comment: str = "") -> int:
        """A job with the supervisor's comment, as its customer; SLURM's id."""
        uid = self.slurm.users.add(CUSTOMER)
        argv = [
            "sbatch",
            "--parsable",
            f"--job-name={name_of(number)}",
            "--output=/dev/null",
            "--mem-per-cpu=50M",
            "--time=5",
        ]
        done = subprocess.run(
            [*argv, f"--comment={comment or self.comment}", *options],
            input=f"#!/bin/bash\n{script}",
            env={**os.environ, **self.slurm.env()},
            cwd=self.slurm.users.home(CUSTOMER),
            user=uid,
            group=uid,
            extra_groups=[],
            check=True,
            capture_output=True,
            text=True,
        )
        return int(done.stdout)

    def scontrol(self, *words: str) -> None:
        done = self.slurm.run("scontrol", *words)
        assert done.returncode == 0, done.stderr

    def node2_is_back(self) -> bool:
        """It comes back by itself, or when it is asked to, if that is first."""
        self.slurm.run("scontrol", "update", "NodeName=node2", "State=RESUME")
        return self.slurm.run(
            "sinfo", "--noheader", "--nodes=node2", "--format=%t"
        ).stdout.split() == ["idle"]

    def told(self, slurm_id: int) -> list[SetJobStatusRequest]:
        return [call for _, call in self.supervisor.calls if call.id == slurm_id]

    def wait_for(self, slurm_id: int, *statuses: int) -> None:
        wait_until(
            lambda: self.statuses(slurm_id) == list(statuses),
            f"{slurm_id} to be told of",
            PATIENCE_S,
        )

    def statuses(self, slurm_id: int) -> list[int]:
        return [call.status for call in self.told(slurm_id)]

    def completed(self, slurm_id: int) -> list[str]:
        """The words that the completion hook was called with."""
        ends = self.slurm.layout.folder / "reported_ends"
        lines = ends.read_text().splitlines() if ends.exists() else []
        return [line.split("|")[1] for line in lines if line.startswith(f"{slurm_id}|")]

    def lasted_s(self, slurm_id: int) -> int:
        argv = (
            "env",
            "SLURM_TIME_FORMAT=%s",
            "squeue",
            "--noheader",
            "--states=all",
            f"--jobs={slurm_id}",
        )
        start, end = self.slurm.run(*argv, "--format=%S %e").stdout.split()
        return int(end) - int(start)


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with private_processes() as mine:
        yield mine


@pytest.fixture(scope="module")
def cluster(processes: Processes) -> Iterator[Cluster]:
    users, folder = Users(processes.folder), new_spool(processes)
    slurm = Slurm.start(processes, users, spool=folder, nodes=2)
    argv = [
        sys.executable,
        "-m",
        "devgrid.faults.upstream_plugin",
        "--events",
        str(folder),
    ]
    processes.start(
        "upstream-plugin",
        argv,
        cwd=REPOSITORY,
        env={**os.environ, "SLURM_CONF": slurm.env()["SLURM_CONF"]},
    )
    with serving(certificates=make_certificates(processes.folder / "tls")) as (
        supervisor,
        port,
    ):
        yield Cluster(slurm, supervisor, f"supervisor 127.0.0.1:{port}", folder)
        slurm.stop()


def test_job__its_start_and_its_end__are_told_to_the_address_in_its_comment(
    cluster: Cluster,
) -> None:
    ended = cluster.submit(1, "sleep 1; exit 3")
    cluster.wait_for(ended, RUNNING, FAILED)
    start, end = cluster.told(ended)
    assert (start.name, start.duration, start.exit_code) == (name_of(1), 0, 0)
    assert (end.name, end.duration, end.exit_code) == (
        name_of(1),
        cluster.lasted_s(ended),
        3 * 256,
    )


def test_job__that_is_cancelled_or_loses_its_node__is_told_as_the_field_does(
    cluster: Cluster,
) -> None:
    waiting = cluster.submit(2, "true", "--hold")
    runs = cluster.submit(3, "sleep 600", "--nodelist=node2")
    cluster.wait_for(runs, RUNNING)
    cluster.scontrol("update", f"JobId={runs}", "Requeue=0")
    cluster.slurm.run("scancel", str(waiting))
    cluster.wait_for(waiting, CANCELLED)
    assert cluster.told(waiting)[0].duration == 0
    cluster.scontrol("update", "NodeName=node2", "State=DOWN", "Reason=test")
    cluster.wait_for(runs, RUNNING, FINISHED)
    assert cluster.completed(runs) == ["NODE_FAIL"]
    wait_until(cluster.node2_is_back, "node2 to be back", PATIENCE_S, 0.2)


def test_job__of_another_comment__is_not_told(cluster: Cluster) -> None:
    """Also where the supervisor's address is at the same place of the comment."""
    at_its_place = cluster.comment.replace("supervisor", "benchmarks")
    others = [
        cluster.submit(number, "true", comment=comment)
        for number, comment in ((4, at_its_place), (5, "mine"))
    ]
    wait_until(
        lambda: all(cluster.completed(other) for other in others),
        "the others to end",
        PATIENCE_S,
    )
    ours = cluster.submit(6, "true")
    cluster.wait_for(ours, RUNNING, FINISHED)
    assert [call for other in others for call in cluster.told(other)] == []


def test_job__requeued__is_told_when_it_ends_for_good(cluster: Cluster) -> None:
    slurm_id = cluster.submit(7, "sleep 600", "--requeue")
    cluster.wait_for(slurm_id, RUNNING)
    cluster.scontrol("requeue", str(slurm_id))
    wait_until(
        lambda: bool(cluster.completed(slurm_id)), "the hook to be called", PATIENCE_S
    )
    # the word of SLURM 22.05 for a requeue
    assert cluster.completed(slurm_id) == ["PENDING"]
    later = cluster.submit(8, "true")
    cluster.wait_for(later, RUNNING, FINISHED)  # ends are told in their order
    cluster.wait_for(slurm_id, RUNNING)
    cluster.slurm.run("scancel", str(slurm_id))
    cluster.wait_for(slurm_id, RUNNING, CANCELLED)


def test_job__resized__is_told_once_with_all_its_seconds(cluster: Cluster) -> None:
    gate = cluster.slurm.users.home(CUSTOMER) / "gate"
    slurm_id = cluster.submit(9, GATE.format(gate=gate), "--nodes=2", "--ntasks=2")
    cluster.wait_for(slurm_id, RUNNING)
    began_s = time.monotonic()
    wait_until(
        lambda: time.monotonic() > began_s + 2.0,
        "the first part to have some seconds",
        PATIENCE_S,
    )
    cluster.scontrol("update", f"JobId={slurm_id}", "NumNodes=1")
    wait_until(
        lambda: cluster.completed(slurm_id) == ["RESIZING"],
        "the hook to be called",
        PATIENCE_S,
    )
    gate.touch()
    cluster.wait_for(slurm_id, RUNNING, FINISHED)
    assert cluster.told(slurm_id)[-1].duration == cluster.lasted_s(slurm_id) >= 2


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("COMPLETED", FINISHED),
        ("FAILED", FAILED),
        ("TIMEOUT", OUT_OF_CREDITS),
        ("CANCELLED", CANCELLED),
        *(
            (state, FINISHED)
            for state in (
                "NODE_FAIL",
                "PREEMPTED",
                "BOOT_FAIL",
                "OUT_OF_MEMORY",
                "DEADLINE",
                "NEW",
            )
        ),
        *((state, 0) for state in ("REQUEUED", "PENDING", "RESIZING")),
    ],
)
def test_upstream_report__each_state_of_slurm__gives_its_status_and_the_exit_code(
    state: str, status: int
) -> None:
    assert upstream_report(state, 768) == (status, 768)


# --- one event ------------------------------------------------------------------------

EVENT = SpooledEvent(name_of(1), 1, spool.FINISHED)
# in place of the upstream plugins' 30 s; the supervisor of these tests is silent for 10 s
SHORT_S = 3.0


@contextmanager
def in_front_of(port: int) -> Iterator[Proxy]:
    with Proxy.start(f"127.0.0.1:{port}") as proxy:
        yield proxy


def job(address: str) -> InSlurm:
    return InSlurm(f"supervisor {address}", start_s=100, end_s=160)


def test_tell__certificate_of_any_authority__each_event_has_its_own_connection(
    tmp_path: Path,
) -> None:
    with (
        serving(certificates=make_certificates(tmp_path)) as (supervisor, port),
        in_front_of(port) as network,
    ):
        send(EVENT, job(network.address))
        once = network.connections
        send(EVENT, job(network.address))
        assert network.connections == 2 * once
        assert [call.duration for _, call in supervisor.calls] == [60, 60]


def test_tell__certificate_of_another_host__is_lost(tmp_path: Path) -> None:
    """127.0.0.2 is not among the names of the certificate."""
    with serving(certificates=make_certificates(tmp_path)) as (supervisor, port):
        with pytest.raises((grpc.RpcError, OSError)):
            send(EVENT, job(f"127.0.0.2:{port}"))
        assert not supervisor.calls


def test_tell__port_without_tls__is_lost() -> None:
    with serving() as (supervisor, port):
        with pytest.raises((ssl.SSLError, OSError)):
            send(EVENT, job(f"127.0.0.1:{port}"))
        assert not supervisor.calls


def test_tell__its_time_out__is_the_fields() -> None:
    assert upstream_plugin.TIMEOUT_S == 30.0


@pytest.mark.parametrize("shows_a_certificate", [False, True])
def test_tell__server_falls_silent__is_given_up_after_the_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shows_a_certificate: bool
) -> None:
    """Before its certificate, or when it has the event."""
    # a slow machine needs as long for a connection that works
    short_s = min(deadline(SHORT_S), 8.0)
    monkeypatch.setattr(upstream_plugin, "TIMEOUT_S", short_s)
    with (
        serving(certificates=make_certificates(tmp_path)) as (supervisor, port),
        in_front_of(port) as network,
    ):
        if shows_a_certificate:
            supervisor.hold.clear()
        else:
            network.fault(Fault.HANG)
        began_s = time.monotonic()
        with pytest.raises((grpc.RpcError, OSError)):
            send(EVENT, job(network.address))
        took_s = time.monotonic() - began_s
        assert short_s <= took_s < deadline(3 * short_s)
        assert len(supervisor.calls) == (1 if shows_a_certificate else 0)
