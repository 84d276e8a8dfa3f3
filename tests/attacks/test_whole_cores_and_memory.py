"""A customer requests whole cores of nodes whose cores have two threads, or all memory
of a node. SLURM does not show that among the job's requests, so it looks like what
SLURM itself rounds up. This site has no job_submit.lua.
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
from tests.support.grid_assertions import journal, rows, slurm_of, wait_for_end
from tests.support.grids import served_grid
from tests.support.marks import in_chaos
from tests.support.requeueing import shown

ALL_NODES = "nodename=node[1-4]"
SLEEPS = "#!/bin/bash\nsleep 300\n"
BIGGER = {
    "ReqThreads=1": ("cpu=8,", "CPUs: 8 instead of 4"),
    "MinMemoryCPU=0": (
        "cpu=4,mem=16000M,",
        "MinMemoryCPU: all of a node instead of 400 MB",
    ),
    "MinMemoryNode=0": (
        "cpu=4,mem=16000M,",
        "MinMemoryCPU: all of a node instead of 400 MB",
    ),
}
AS_PAID = "cpu=4,mem=400M,node=1,"
# SLURM accepts these of a job's owner, and gives no more for them
NO_MORE = [
    "ReqCores=2",
    "ReqCores=4",
    "ReqSockets=1",
    "ReqSockets=2",
    "CPUsPerTask=8",
    "NumTasks=8",
    "CpusPerTres=gpu:8",
    "TresPerSocket=gpu:2",
    "Switches=1",
    "DelayBoot=1",
    "TimeMin=1",
    "ArrayTaskThrottle=1",
]
NEVER_BEGUN = ["ReqSockets=2"]  # the nodes have one


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    with served_grid(GridOptions(threads_per_core=2, job_submit=False)) as running:
        yield running


def waiting(grid: Grid, customer: Account, gpus: int = 0) -> tuple[str, int]:
    """A job of four CPUs that waits, as no node accepts jobs. The worker has polled
    it.
    """
    scontrol(grid, "update", ALL_NODES, "state=drain", "reason=test")
    job_id = grid.submit_script(customer, SLEEPS, cpusPerTask=4, gpus=gpus)
    slurm_id = id_of(grid, job_id)
    wait_for_first_look(grid, job_id)
    return job_id, slurm_id


@pytest.mark.parametrize(
    "word", ["ReqThreads=1", *map(in_chaos, ["MinMemoryCPU=0", "MinMemoryNode=0"])]
)
def test_more_than_paid__begun_before_a_look__is_cancelled_with_reason_and_alarm(
    grid: Grid, customer: Account, word: str
) -> None:
    job_id, slurm_id = waiting(grid, customer)
    grid.processes.kill(grid.fleet.find("worker"))
    as_customer(grid, customer, "scontrol", "update", f"JobId={slurm_id}", word)
    scontrol(grid, "update", ALL_NODES, "state=resume")
    wait_for_state(grid, slurm_id, "RUNNING")
    given, why = BIGGER[word]
    assert shown(grid, slurm_id, "tres-alloc").startswith(given)
    grid.fleet.start_worker()
    job = wait_for_end(grid, job_id, PATIENCE_S)
    assert job.status is ChainStatus.CANCELLED
    assert why in job.last_error
    assert job_id in str(
        rows(grid, "SELECT details FROM alarms WHERE name = 'more_than_paid'")[
            0
        ].details
    )


@pytest.mark.parametrize("word", ["MinMemoryCPU=0", in_chaos("MinMemoryNode=0")])
def test_more_than_paid__all_memory_for_a_job_that_waits__is_put_back(
    grid: Grid, customer: Account, word: str
) -> None:
    job_id, slurm_id = waiting(grid, customer)
    as_customer(grid, customer, "scontrol", "update", f"JobId={slurm_id}", word)
    # a look may put it back at once, so the ledger shows that it was changed
    wait_until(
        lambda: (
            "MoreThanPaid" in journal(grid, job_id)
            and shown(grid, slurm_id, "MinMemory") == "100M"
        ),
        "the memory to be put back",
        PATIENCE_S,
        0.2,
    )
    scontrol(grid, "update", ALL_NODES, "state=resume")
    wait_for_state(grid, slurm_id, "RUNNING")
    assert shown(grid, slurm_id, "tres-alloc").startswith("cpu=4,mem=400M,")
    as_customer(grid, customer, "scancel", str(slurm_id))


def test_more_than_paid__rounded_up_to_whole_cores_by_slurm_itself__is_no_attack(
    grid: Grid, customer: Account
) -> None:
    script = "#!/bin/bash\nuntil [ -e ~/size-seen ]; do sleep 0.1; done\nsleep 4\n"
    job_id = grid.submit_script(customer, script, cpusPerTask=3)
    slurm_id = id_of(grid, job_id)
    wait_for_state(grid, slurm_id, "RUNNING")
    assert shown(grid, slurm_id, "tres-alloc").startswith("cpu=4,")
    (grid.users.home(customer.address) / "size-seen").touch()
    assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.FINISHED
    assert "MoreThanPaid" not in journal(grid, job_id)


def begun(grid: Grid, slurm_id: int) -> bool:
    """Whether SLURM has begun the job. False when it never will."""

    def is_decided() -> bool:
        return (
            shown(grid, slurm_id, "State") == "RUNNING"
            or shown(grid, slurm_id, "Reason") == "BadConstraints"
        )

    wait_until(is_decided, f"{slurm_id} to begin", PATIENCE_S, 0.2)
    return shown(grid, slurm_id, "State") == "RUNNING"


@pytest.mark.chaos
def test_changed__in_words_that_give_no_more__begins_as_paid_if_at_all(
    grid: Grid, customer: Account
) -> None:
    """All jobs are changed while the worker is down."""
    jobs = [waiting(grid, customer, gpus=1) for _ in NO_MORE]
    grid.processes.kill(grid.fleet.find("worker"))
    for word, (_, slurm_id) in zip(NO_MORE, jobs, strict=True):
        as_customer(grid, customer, "scontrol", "update", f"JobId={slurm_id}", word)
    scontrol(grid, "update", ALL_NODES, "state=resume")
    never = []
    for word, (_, slurm_id) in zip(NO_MORE, jobs, strict=True):
        if begun(grid, slurm_id):
            assert shown(grid, slurm_id, "tres-alloc").startswith(AS_PAID), word
            details = slurm_of(grid).run("scontrol", "show", "job", "-d", str(slurm_id))
            assert "JOB_GRES=gpu:1\n" in details.stdout, word
        else:
            never.append(word)
        # the others need its CPUs
        as_customer(grid, customer, "scancel", str(slurm_id))
    assert never == NEVER_BEGUN
    grid.fleet.start_worker()
    for job_id, _ in jobs:
        assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.CANCELLED
