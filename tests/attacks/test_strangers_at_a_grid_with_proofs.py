"""A whole grid with CALLBACK_PROOF=required: what our own programs report is taken, and
a stranger's calls about the same job leave no trace.

Its node loads the SPANK plugin, with a spool and a reporter of its own. The hooks write
to the spool of slurmctld's host, and sshd asks for the key with a proof.
"""

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from devgrid import REPOSITORY
from devgrid.chain.model import Account
from devgrid.cluster.cluster import CALLBACK_KEY
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.options import GridOptions
from devgrid.processes import answers, wait_until
from grpc_callbacks.server import REPORTER_SERVICE
from protos.supervisor.v1alpha1 import supervisor_pb2 as messages
from protos.supervisor.v1alpha1 import supervisor_pb2_grpc as services
from supervisor_tasks.jobs.model import ChainStatus
from supervisor_tasks.ledger.heartbeats import reporter_of
from tests.support.callers import stranger
from tests.support.commands import supervisor
from tests.support.end_states import PATIENCE_S, running
from tests.support.grid_assertions import rows, slurm_of, wait_for_end
from tests.support.grids import served_grid
from tests.support.ports import answer_to, random_job_id

UNTIL_ENOUGH = "#!/bin/bash\nuntil [ -e ~/enough ]; do sleep 0.1; done\n"
UNPROVEN = grpc.StatusCode.UNAUTHENTICATED
FORGED: tuple[dict[str, int], ...] = (
    {"status": messages.JOB_STATUS_RUNNING, "duration": 7},
    {"status": messages.JOB_STATUS_FINISHED, "duration": 3_000},
    {"status": messages.JOB_STATUS_FAILED, "duration": 2, "exit_code": 256},
)


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    options = GridOptions(nodes=1, overrides={"CALLBACK_PROOF": "required"})
    with served_grid(options) as served:
        load_spank_plugin(served)
        yield served


def load_spank_plugin(grid: Grid) -> None:
    """Have the node load the project's plugin as it starts, and start the reporter of
    its spool.
    """
    slurm, spool = grid.folder / "slurm", grid.folder / "node-spool"
    spool.mkdir(mode=0o700)
    (slurm / "plugstack.conf").write_text(
        f"optional {slurm}/plugins/spank_supervisor.so spool={spool}\n"
    )
    grid.processes.kill(grid.processes.find("slurmd-node1"))
    slurm_of(grid).start_node(1)
    (port,) = slurm_of(grid).layout.node_ports
    wait_until(lambda: answers(port), "the node to listen", PATIENCE_S)
    argv: list[str | Path] = [
        *(sys.executable, "-m", "plugins.reporter", "--spool", spool),
        *("--supervisor", grid.environment["PUBLIC_ADDRESS"]),
        *("--ca", grid.cluster.certificates.ca, "--key", grid.folder / CALLBACK_KEY),
    ]
    grid.processes.start("node-reporter", argv, cwd=REPOSITORY, env={})


def stored(grid: Grid, job_id: str) -> list[tuple[int, str]]:
    """Status and proof of each callback about the job."""
    query = "SELECT status, proof FROM callbacks WHERE job_id = :id ORDER BY id"
    return [(row.status, row.proof) for row in rows(grid, query, id=job_id)]


def callers(grid: Grid, job_id: str, status: int) -> set[str]:
    """The addresses from which the port has heard of this status with a proof."""
    log = (grid.processes.logs / "callbacks.log").read_text()
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in log.splitlines() if '"callback_stored"' in line
    ]
    return {
        line["peer"]
        for line in lines
        if (line["job_id"], line["status"], line["proof"]) == (job_id, status, "proven")
    }


def call_without_a_proof(grid: Grid, job_id: str, slurm_id: int) -> None:
    """Make every call that the port knows, as a stranger. All are refused."""
    with stranger(grid) as channel:
        for forged in FORGED:
            assert answer_to(channel, job_id, slurm_id, **forged) is UNPROVEN
        assert answer_to(channel, random_job_id()) is UNPROVEN
        health: Any = health_pb2_grpc.HealthStub(channel)
        sign = health_pb2.HealthCheckRequest(service=REPORTER_SERVICE)
        ssh: Any = services.SshAPIStub(channel)
        keys = messages.FetchAuthorizedKeysRequest()
        for call, request in ((health.Check, sign), (ssh.FetchAuthorizedKeys, keys)):
            with pytest.raises(grpc.RpcError) as caught:
                call(request, timeout=deadline(10))
            assert caught.value.code() is UNPROVEN


def test_job__stranger_calls_without_a_proof__runs_through_and_no_call_is_stored(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, UNTIL_ENOUGH, minutes=100)
    slurm_id = running(grid, job_id)
    runs, finished = messages.JOB_STATUS_RUNNING, messages.JOB_STATUS_FINISHED
    wait_until(
        lambda: len(callers(grid, job_id, runs)) == 2,
        "hook and SPANK plugin to report the start",
        PATIENCE_S,
        0.1,
    )
    call_without_a_proof(grid, job_id, slurm_id)
    assert stored(grid, job_id) == [(runs, "proven")]
    assert grid.chain.job(job_id).status is ChainStatus.RUNNING
    (grid.users.home(customer.address) / "enough").touch()
    assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.FINISHED
    wait_until(
        lambda: callers(grid, job_id, finished) != set(),
        "the hook to report the end",
        PATIENCE_S,
        0.1,
    )
    assert stored(grid, job_id) == [(runs, "proven"), (finished, "proven")]
    others = "SELECT DISTINCT proof, unknown_job FROM callbacks"
    assert [tuple(row) for row in rows(grid, others)] == [("proven", False)]
    assert "stranger_refused" in (grid.processes.logs / "callbacks.log").read_text()


def test_sign_of_life__of_our_own_reporter__is_taken(
    grid: Grid, customer: Account
) -> None:
    """The reporter sends one when it has delivered an end."""
    (grid.users.home(customer.address) / "enough").touch()
    job_id = grid.submit_script(customer, UNTIL_ENOUGH, minutes=100)
    assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.FINISHED
    signs = "SELECT 1 FROM periodic_runs WHERE name = :name"
    wait_until(
        lambda: rows(grid, signs, name=reporter_of(socket.gethostname())) != [],
        "the reporter's heartbeat",
        PATIENCE_S,
        0.1,
    )


def test_doctor__port_refuses_it_without_a_proof__says_that_the_port_answers(
    grid: Grid,
) -> None:
    words = ("doctor", "--json", "--within-s", "60")
    result = supervisor(*words, env=grid.environment)
    found = {row["name"]: row for row in json.loads(result.stdout)}["callbacks"]
    assert (found["level"], found["found"]) == (
        "green",
        f"{grid.environment['PUBLIC_ADDRESS']} answers, and refuses a caller from here without a proof",
    )
