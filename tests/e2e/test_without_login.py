"""A whole grid without a login node: the fleet reaches SLURM over slurmrestd only
(SLURM_TRANSPORT=rest).
"""

import json
import signal
from collections.abc import Iterator

import pytest

from devgrid.chain.model import Account
from devgrid.cluster.slurmrestd import NAME
from devgrid.faults.network_proxy import Fault, Proxy
from devgrid.fleet import Fleet
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.ports import free_port
from devgrid.processes import wait_until
from devgrid.tls import make_certificates
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.commands import supervisor
from tests.support.end_states import assert_overrun_is_billed
from tests.support.grid_assertions import (
    job_record,
    journal,
    slurm_ids,
    wait_for_end,
)
from tests.support.grids import BLOCK_TIME_S
from tests.support.health_pages import dependencies

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    running = Grid.start(
        GridOptions(block_time_s=BLOCK_TIME_S, transport="rest", nodes=2)
    )
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module", autouse=True)
def overrunning(grid: Grid, customer: Account) -> str:
    """A job that runs into its limit of a minute: begun first, looked at when others
    have waited for longer.
    """
    return grid.submit_script(customer, "#!/bin/bash\nsleep 300\n", minutes=1)


def alarms(grid: Grid) -> set[str]:
    result = supervisor("alarm", "list", "-o", "json", env=grid.environment)
    return {alarm["name"] for alarm in json.loads(result.stdout)}


def test_whole_job__no_sshd_anywhere__finishes_as_the_customers_user(
    grid: Grid, customer: Account
) -> None:
    assert "sshd" not in {one.name for one in grid.processes.started()}
    assert not [name for name in grid.environment if name.startswith("SLURM_SSH")]
    script = (
        '#!/bin/bash\necho "$(id -un) in $PWD, HOME=$HOME, $SLURM_GPUS GPU"\nsleep 1\n'
    )
    job_id = grid.submit_script(customer, script, gpus=1)
    job = wait_for_end(grid, job_id)
    assert (job.status, job.exit_code, job.last_error) == (ChainStatus.FINISHED, 0, "")
    home = grid.users.home(customer.address)
    assert grid.output(customer.address, job_id).startswith(
        f"{customer.address} in {home}, HOME={home},"
    )
    (slurm_id,) = slurm_ids(grid, job_id)
    seen = job_record(grid, slurm_id)
    assert f"Comment=supervisor {grid.environment['PUBLIC_ADDRESS']}" in seen
    assert "Requeue=0" in seen
    # 22.05; 24.11
    assert "TresPerJob=gres:gpu:1" in seen or "TresPerJob=gres/gpu:1" in seen


def test_doctor__over_slurmrestd__names_no_ssh(grid: Grid) -> None:
    result = supervisor("doctor", "--json", "--within-s", "30", env=grid.environment)
    found = {row["name"]: row for row in json.loads(result.stdout)}
    assert not [name for name in found if "SSH" in name or "login" in name]
    assert {
        name: found[name]["level"]
        for name in ("slurmrestd", "slurmctld", "accounting", "nodes")
    } == dict.fromkeys(("slurmrestd", "slurmctld", "accounting", "nodes"), "green")


def test_slurmrestd_killed__jobs_wait__and_run_once_when_it_is_back(
    grid: Grid, customer: Account
) -> None:
    grid.processes.kill(grid.processes.find(NAME), signal.SIGKILL)
    try:
        job_id = grid.submit_script(customer, "#!/bin/bash\nsleep 1\n")
        wait_until(
            lambda: "slurm_not_answering" in alarms(grid), "the alarm", 180.0, 1.0
        )
        assert not slurm_ids(grid, job_id)
        result = supervisor(
            "doctor", "--json", "--within-s", "30", env=grid.environment
        )
        found = {row["name"]: row for row in json.loads(result.stdout)}
        assert found["slurmrestd"]["level"] == "red"
    finally:
        grid.processes.start_again(NAME)
    job = wait_for_end(grid, job_id)
    assert job.status is ChainStatus.FINISHED
    assert len(slurm_ids(grid, job_id)) == 1
    assert journal(grid, job_id).count("Submitted") == 1
    wait_until(
        lambda: "slurm_not_answering" not in alarms(grid),
        "the alarm to be over",
        90.0,
        0.5,
    )


@pytest.fixture
def over_tls(grid: Grid) -> Iterator[tuple[Proxy, Fleet, int]]:
    """A proxy with TLS before slurmrestd's socket, a fleet whose only worker uses it,
    and the port of that worker's pages.
    """
    socket, port = (
        grid.environment["SLURMRESTD_URL"].removeprefix("unix://"),
        free_port(),
    )
    certificates = make_certificates(grid.folder / "slurmrestd-tls")
    grid.processes.kill(grid.processes.find("worker"), signal.SIGTERM)
    with Proxy.start(socket, certificates=certificates) as proxy:
        url = {
            "SLURMRESTD_URL": f"https://localhost:{proxy.address.rpartition(':')[2]}"
        }
        given = {
            **url,
            "SLURMRESTD_CA": str(certificates.ca),
            "HEALTH_ADDRESS": f"127.0.0.1:{port}",
        }
        fleet = Fleet(grid.processes, grid.environment | given)
        fleet.start_worker()
        yield proxy, fleet, port
        grid.processes.kill(grid.processes.find("worker"), signal.SIGTERM)
    grid.fleet.start_worker()


def test_whole_job__over_tls__is_submitted_cancelled_and_asked_for(
    grid: Grid, customer: Account, over_tls: tuple[Proxy, Fleet, int]
) -> None:
    proxy, _, port = over_tls
    wait_until(
        lambda: dependencies(port).get("slurmrestd", {}).get("ok"),
        "the worker to reach slurmrestd",
        60.0,
    )
    job_id = grid.submit_script(customer, "#!/bin/bash\nsleep 1\n")
    assert wait_for_end(grid, job_id).status is ChainStatus.FINISHED
    runs = grid.submit_script(customer, "#!/bin/bash\nsleep 900\n")
    wait_until(
        lambda: grid.chain.job(runs).status is ChainStatus.RUNNING,
        "the job to run",
        120.0,
        0.2,
    )
    grid.chain.customers.cancel_job(customer, runs)
    assert wait_for_end(grid, runs).status is ChainStatus.CANCELLED
    assert proxy.connections > 0
    proxy.fault(Fault.REFUSE)
    wait_until(
        lambda: dependencies(port).get("slurmrestd", {}).get("ok") is False,
        "the worker to miss slurmrestd",
        60.0,
    )


def test_time_limit__over_slurmrestd__is_out_of_credits_and_billed_to_the_minute(
    grid: Grid, overrunning: str
) -> None:
    assert_overrun_is_billed(grid, overrunning)
