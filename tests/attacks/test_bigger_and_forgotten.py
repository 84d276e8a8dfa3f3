"""A customer makes his jobs bigger while the supervisor is down, and SLURM has forgotten
them when it is back: only accounting has their sizes. This site has no job_submit.lua.
"""

from collections.abc import Iterator

import pytest

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.end_states import (
    PATIENCE_S,
    as_customer,
    id_of,
    scontrol,
    wait_for_first_look,
    wait_for_state,
)
from tests.support.grid_assertions import rows, slurm_of, wait_for_end
from tests.support.grids import served_grid
from tests.support.requeueing import begin_again, requeue, wait_for_seconds

ALL_NODES = "nodename=node[1-4]"
SMALL = {"cpusPerTask": 2, "gpus": 1}
BRIEF = "#!/bin/bash\nsleep 2\n"
# the next run is brief
LONG_AT_FIRST = (
    '#!/bin/bash\n[ -n "$SLURM_RESTART_COUNT" ] && exec sleep 2\nexec sleep 600\n'
)
# With TresPerNode=gpu:2 SLURM 22.05 gives one GPU to a job that asked for one.
BIGGER = {
    "TresPerJob=gres:gpu:2": "GPUs: 2 instead of 1",
    "NumNodes=2": "nodes: 2 instead of 1",
    "ReqNodeList=node[1-2]": "nodes: 2 instead of 1",
    "MinMemoryNode=8000": "memory: 8000 instead of 200",
    "MinMemoryCPU=0": "memory: 16000 instead of 200",
    "NumCPUs=1, MinMemoryCPU=200, NumCPUs=2": "memory: 400 instead of 200",
    "Partition=other": "Partition: other instead of main",
}
AS_PAID = ("Nice=100", "TimeLimit=30")  # without a price, and less


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    other = "PartitionName=other Nodes=ALL MaxTime=INFINITE State=UP"
    options = GridOptions(
        slurm_conf=(other,), job_submit=False, accounting=True, min_job_age_s=2
    )
    with served_grid(options) as served:
        yield served


def waiting(grid: Grid, customer: Account, script: str, number: int) -> dict[str, int]:
    """Jobs that wait, as no node accepts jobs, and that a look has seen; by their ids on
    the contract.
    """
    scontrol(grid, "update", ALL_NODES, "state=drain", "reason=test")
    job_ids = [
        grid.submit_script(customer, script, minutes=60, **SMALL) for _ in range(number)
    ]
    slurm_ids = {job_id: id_of(grid, job_id) for job_id in job_ids}
    for job_id in job_ids:
        wait_for_first_look(grid, job_id)
    return slurm_ids


def change(grid: Grid, customer: Account, slurm_id: int, words: str) -> None:
    for word in words.split(", "):
        as_customer(grid, customer, "scontrol", "update", f"JobId={slurm_id}", word)


def wait_until_forgotten(grid: Grid) -> None:
    listing = ("squeue", "--noheader", "--states=all")
    wait_until(
        lambda: slurm_of(grid).run(*listing).stdout.strip() == "",
        "SLURM to end and forget the jobs",
        2 * PATIENCE_S,
        0.5,
    )


def alarm(grid: Grid) -> str:
    found = rows(grid, "SELECT details FROM alarms WHERE name = 'more_than_paid'")
    return str(found[0].details) if found else ""


def test_changed__only_accounting_has_the_size__keeps_its_end_with_reason_and_alarm(
    grid: Grid, customer: Account
) -> None:
    slurm_ids = waiting(grid, customer, BRIEF, len(BIGGER) + 1)
    grid.processes.kill(grid.fleet.find("worker"))
    *bigger, paid = slurm_ids
    for job_id, words in zip(bigger, BIGGER, strict=True):
        change(grid, customer, slurm_ids[job_id], words)
    change(grid, customer, slurm_ids[paid], ", ".join(AS_PAID))
    scontrol(grid, "update", ALL_NODES, "state=resume")
    wait_until_forgotten(grid)
    grid.fleet.start_worker()
    for job_id, why in zip(bigger, BIGGER.values(), strict=True):
        job = wait_for_end(grid, job_id, PATIENCE_S)
        assert (job.status, why in job.last_error) == (ChainStatus.FINISHED, True), (
            why,
            job,
        )
        assert f"'{job_id}': '{customer.address.lower()}: " in alarm(grid)
    job = wait_for_end(grid, paid, PATIENCE_S)
    assert (job.status, job.last_error) == (ChainStatus.FINISHED, "")
    assert paid not in alarm(grid)


@pytest.mark.chaos
def test_changed__run_before_a_requeue_was_bigger__has_a_reason_and_an_alarm(
    grid: Grid, customer: Account
) -> None:
    """The last run has its paid size again."""
    ((job_id, slurm_id),) = waiting(grid, customer, LONG_AT_FIRST, 1).items()
    grid.processes.kill(grid.fleet.find("worker"))
    change(grid, customer, slurm_id, "TresPerJob=gres:gpu:2")
    scontrol(grid, "update", ALL_NODES, "state=resume")
    wait_for_state(grid, slurm_id, "RUNNING")
    wait_for_seconds(grid, slurm_id, 2)
    requeue(grid, customer, slurm_id)
    change(grid, customer, slurm_id, "TresPerJob=gres:gpu:1")
    begin_again(grid, slurm_id)
    wait_until_forgotten(grid)
    grid.fleet.start_worker()
    job = wait_for_end(grid, job_id, PATIENCE_S)
    assert job.status is ChainStatus.FINISHED
    assert "GPUs: 2 instead of 1" in job.last_error
    assert job_id in alarm(grid)
