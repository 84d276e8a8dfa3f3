"""A whole grid without a login node: the fleet reaches SLURM over slurmrestd only (SLURM_TRANSPORT=rest)."""

import json
import signal
from collections.abc import Iterator

import pytest

from devgrid.chain.model import Account
from devgrid.cluster.slurmrestd import NAME
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.commands import supervisor
from tests.support.grids import BLOCK_TIME_S
from tests.support.watching import journal, slurm_ids, slurm_of, wait_for_end


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    running = Grid.start(GridOptions(block_time_s=BLOCK_TIME_S, transport="rest", nodes=2))
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def customer(grid: Grid) -> Account:
    return grid.new_customer()


def shown(grid: Grid, slurm_id: int) -> str:
    return slurm_of(grid).run("scontrol", "show", "job", str(slurm_id), "--oneliner").stdout


def alarms(grid: Grid) -> set[str]:
    result = supervisor("alarm", "list", "-o", "json", env=grid.environment)
    return {alarm["name"] for alarm in json.loads(result.stdout)}


def test_whole_job__no_sshd_anywhere__finishes_as_the_customers_user(grid: Grid, customer: Account) -> None:
    assert "sshd" not in {one.name for one in grid.processes.started()}
    assert not [name for name in grid.environment if name.startswith("SLURM_SSH")]
    script = '#!/bin/bash\necho "$(id -un) in $PWD, HOME=$HOME, $SLURM_GPUS GPU"\nsleep 1\n'
    job_id = grid.submit_script(customer, script, gpus=1)
    job = wait_for_end(grid, job_id)
    assert (job.status, job.exit_code, job.last_error) == (ChainStatus.FINISHED, 0, "")
    home = grid.users.home(customer.address)
    assert grid.output(customer.address, job_id).startswith(f"{customer.address} in {home}, HOME={home},")
    (slurm_id,) = slurm_ids(grid, job_id)
    seen = shown(grid, slurm_id)
    assert f"Comment=supervisor {grid.environment['PUBLIC_ADDRESS']}" in seen
    assert "Requeue=0" in seen
    assert "TresPerJob=gres:gpu:1" in seen


def test_failed_job__over_slurmrestd__has_the_raw_wait_status(grid: Grid, customer: Account) -> None:
    job = wait_for_end(grid, grid.submit_script(customer, "#!/bin/bash\nexit 3\n"))
    assert (job.status, job.exit_code, job.last_error) == (ChainStatus.FAILED, 3 * 256, "exit code 3")


def test_doctor__over_slurmrestd__names_no_ssh(grid: Grid) -> None:
    result = supervisor("doctor", "--json", "--within-s", "30", env=grid.environment)
    found = {row["name"]: row for row in json.loads(result.stdout)}
    assert not [name for name in found if "SSH" in name or "login" in name]
    assert {name: found[name]["level"] for name in ("slurmrestd", "slurmctld", "accounting", "nodes")} == dict.fromkeys(
        ("slurmrestd", "slurmctld", "accounting", "nodes"), "green"
    )


def test_slurmrestd_killed__jobs_wait__and_run_once_when_it_is_back(grid: Grid, customer: Account) -> None:
    grid.processes.kill(grid.processes.find(NAME), signal.SIGKILL)
    try:
        job_id = grid.submit_script(customer, "#!/bin/bash\nsleep 1\n")
        wait_until(lambda: "slurm_not_answering" in alarms(grid), "the alarm", 180.0, 1.0)
        assert not slurm_ids(grid, job_id)
        result = supervisor("doctor", "--json", "--within-s", "30", env=grid.environment)
        found = {row["name"]: row for row in json.loads(result.stdout)}
        assert found["slurmrestd"]["level"] == "red"
    finally:
        grid.processes.start_again(NAME)
    job = wait_for_end(grid, job_id)
    assert job.status is ChainStatus.FINISHED
    assert len(slurm_ids(grid, job_id)) == 1
    assert journal(grid, job_id).count("Submitted") == 1
    wait_until(lambda: "slurm_not_answering" not in alarms(grid), "the alarm to be over", 90.0, 0.5)
