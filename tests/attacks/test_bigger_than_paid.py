"""A customer changes his job in SLURM, so that it gets more than was paid for. This
site has no job_submit.lua, and no accounting (in `make attacks` also with it).
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from devgrid.chain.model import Account, ChainPrices
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from supervisor_tasks.reconciliation.sweep_interval import interval_s
from tests.support.end_states import (
    PATIENCE_S,
    as_customer,
    id_of,
    record_of,
    row_of,
    run_as_customer,
    running,
    scontrol,
    wait_for_first_look,
    wait_for_state,
)
from tests.support.grid_assertions import (
    journal,
    ledger,
    rows,
    slurm_of,
    sweep,
    wait_for_end,
)
from tests.support.grids import served_grid
from tests.support.marks import in_chaos
from tests.support.requeueing import seconds_of_runs

ALL_NODES = "nodename=node[1-4]"
FOUR_NODES = "ReqNodeList=node[1-4]"
SLEEPS = "#!/bin/bash\nsleep 300\n"
SMALL = {"cpusPerTask": 2, "gpus": 1}
FIELDS = "TimeLimit,NumCPUs,cpus-per-task,MinMemory,tres-per-job,tres-per-node,tres-per-task,Partition,Reservation,tres-alloc"
AS_PAID = {
    "TimeLimit": "1:00:00",
    "NumCPUs": "2",
    "cpus-per-task": "2",
    "MinMemory": "100M",
    "tres-per-job": "gres:gpu:1",
    "tres-per-node": "",
    "tres-per-task": "",
    "Partition": "main",
    "Reservation": "",
    "tres-alloc": "cpu=2,mem=200M,node=1,billing=2",
}
BIGGER = [
    "TimeLimit=600",
    "NumCPUs=8",
    "MinCPUsNode=8",
    "NumNodes=2",
    "MinMemoryCPU=500",
    "MinMemoryNode=8000",
    "TresPerJob=gpu:2",
    "TresPerNode=gpu:2",
    "TresPerTask=gpu:2",
    "Partition=other",
    "ReservationName=spare",
    # SLURM computes the job's memory with the CPUs of the moment
    "NumCPUs=1, MinMemoryCPU=200, NumCPUs=2",
    # a running job has 8 CPUs then, and SLURM counts two as what it asked for
    "NumCPUs=2-32, CPUsPerTask=8",
]
HARMLESS = [
    "JobName=other",
    "Comment=other",
    "Nice=100",
    "Requeue=1",
    "StartTime=now+1minute",
    "TimeLimit=30",
    "NumCPUs=1",
]
# SLURM 22.05 lets the owner of a job that runs change what is in the second list alone.
REFUSED_WHILE_IT_RUNS = [
    "TimeLimit=600",
    "TimeLimit+=10",
    "EndTime=now+10hours",
    "NumCPUs=8",
    "NumNodes=2",
    "MinMemoryCPU=500",
    "Gres=gpu:2",
    "TresPerNode=gpu:2",
    "TresPerJob=gpu:2",
    "Partition=other",
    "Account=other",
    "ArrayString=1-3",
    "StartTime=now+1minute",
]
TAKEN_WHILE_IT_RUNS = [
    "QOS=normal",
    "Nice=100",
    "Requeue=1",
    "Comment=other",
    "JobName=other",
    "TimeLimit=30",
]

PARKED = """
    UPDATE effects SET parked_at = now(), lease = NULL, lease_until = NULL
    WHERE job_id = :id AND kind = 'poll_slurm' AND done_at IS NULL
"""


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, id="no accounting"), in_chaos(True, id="accounting")],
)
def grid(request: pytest.FixtureRequest) -> Iterator[Grid]:
    other = "PartitionName=other Nodes=ALL MaxTime=INFINITE State=UP"
    options = GridOptions(
        slurm_conf=(other,), job_submit=False, accounting=request.param
    )
    with served_grid(options) as served:
        # Each job gets whole nodes, as some sites configure it: it is no attack that
        # SLURM rounds up.
        scontrol(served, "update", "PartitionName=main", "OverSubscribe=EXCLUSIVE")
        fast = ("AvailableFeatures=fast", "ActiveFeatures=fast")
        scontrol(served, "update", ALL_NODES, *fast)
        yield served


@pytest.fixture
def drained_nodes(grid: Grid) -> Iterator[None]:
    scontrol(grid, "update", ALL_NODES, "state=drain", "reason=test")
    yield
    scontrol(grid, "update", ALL_NODES, "state=resume")


@pytest.fixture
def slow_prolog(grid: Grid) -> Iterator[Path]:
    """A prolog that ends when the file is made."""
    hook = grid.folder / "slurm" / "plugins" / "supervisor-started"
    kept, enough = hook.rename(hook.with_name("kept")), hook.with_name("enough")
    hook.write_text(
        f"#!/bin/sh\nuntil [ -e {enough} ]; do sleep 0.1; done\nexec {kept}\n"
    )
    hook.chmod(0o755)
    yield enough
    enough.touch()
    kept.rename(hook)


@pytest.fixture
def reservation(grid: Grid, customer: Account) -> Iterator[None]:
    """A reservation of the site's that the customer may use."""
    mine = f"users={customer.address.lower()}"
    scontrol(
        grid,
        "create",
        "reservation",
        "ReservationName=spare",
        mine,
        "nodes=node4",
        "starttime=now",
        "duration=60",
    )
    yield

    # SLURM may still be ending the job that was in it
    def is_deleted() -> bool:
        argv = ("scontrol", "delete", "ReservationName=spare")
        return slurm_of(grid).run(*argv).returncode == 0

    wait_until(is_deleted, "the reservation to be deleted", 60.0, 0.2)


def size(grid: Grid, slurm_id: int) -> dict[str, str]:
    wanted = ",".join(f"{field}:0|" for field in FIELDS.split(","))
    argv = (
        "squeue",
        "--noheader",
        "--states=all",
        f"--jobs={slurm_id}",
        f"--Format={wanted}",
    )
    values = slurm_of(grid).run(*argv).stdout.strip().split("|")
    return {
        field: "" if word in ("N/A", "(null)") else word
        for field, word in zip(FIELDS.split(","), values, strict=False)
    }


def as_paid(grid: Grid) -> dict[str, str]:
    """The size of a job that its owner has not changed. With accounting, SLURM shows
    GPUs among what is allocated, too.
    """
    if not has_accounting(grid):
        return AS_PAID
    return AS_PAID | {"tres-alloc": AS_PAID["tres-alloc"] + ",gres/gpu=1"}


def has_accounting(grid: Grid) -> bool:
    return grid.environment["SLURM_ACCOUNTING"] == "true"


def look(grid: Grid, *job_ids: str) -> None:
    """Poll the job at once, as its next poll may be minutes away."""
    hurried = "UPDATE effects SET due_at = now() WHERE job_id = ANY(:ids) AND kind = 'poll_slurm' AND done_at IS NULL"
    with ledger(grid) as engine, engine.begin() as connection:
        connection.execute(text(hurried), {"ids": list(job_ids)})


def change(grid: Grid, customer: Account, slurm_id: int, *words: str) -> None:
    as_customer(grid, customer, "scontrol", "update", f"JobId={slurm_id}", *words)


@pytest.mark.usefixtures("reservation", "drained_nodes")
def test_changed_while_it_waits__to_more_than_paid__is_put_back(
    grid: Grid, customer: Account
) -> None:
    paid = as_paid(grid)
    jobs = {
        grid.submit_script(customer, SLEEPS, minutes=60, **SMALL): word
        for word in BIGGER
    }
    ids = {job_id: id_of(grid, job_id) for job_id in jobs}
    for job_id, words in jobs.items():
        for word in words.split(", "):
            change(grid, customer, ids[job_id], word)
    look(grid, *jobs)
    for job_id, word in jobs.items():
        wait_until(
            lambda: size(grid, ids[job_id]) == paid,  # noqa: B023
            f"{word} to be put back",
            PATIENCE_S,
            0.2,
        )
    for job_id in jobs:
        as_customer(grid, customer, "scancel", str(ids[job_id]))
        assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.CANCELLED
        assert row_of(grid, job_id).stop_status is None


def test_changed_while_it_waits__gpus_though_none_were_paid__are_put_back(
    grid: Grid, customer: Account
) -> None:
    """SLURM 22.05 accepts Gres= only for a job without GPUs."""
    scontrol(grid, "update", ALL_NODES, "state=drain", "reason=test")
    job_id = grid.submit_script(customer, SLEEPS, minutes=60)
    slurm_id = id_of(grid, job_id)
    change(grid, customer, slurm_id, "Gres=gpu:2")
    look(grid, job_id)
    # a look may put it back at once, so the ledger shows that it was changed
    wait_until(
        lambda: "MoreThanPaid" in journal(grid, job_id),
        "the ledger to know",
        PATIENCE_S,
        0.2,
    )
    wait_until(
        lambda: "2" not in size(grid, slurm_id)["tres-per-node"],
        "Gres to be put back",
        PATIENCE_S,
        0.2,
    )
    scontrol(grid, "update", ALL_NODES, "state=resume")
    wait_for_state(grid, slurm_id, "RUNNING")
    if not has_accounting(grid):  # it counts all GPUs of a node that is the job's alone
        assert "gpu" not in size(grid, slurm_id)["tres-alloc"]
    as_customer(grid, customer, "scancel", str(slurm_id))
    assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.CANCELLED


@pytest.mark.usefixtures("drained_nodes")
def test_changed_while_it_waits__to_less_or_without_a_price__is_the_owners_choice(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, SLEEPS, minutes=60, **SMALL)
    slurm_id = id_of(grid, job_id)
    change(grid, customer, slurm_id, *HARMLESS)
    before, looks = (
        size(grid, slurm_id),
        journal(grid, job_id).count("SlurmPendingObserved"),
    )
    look(grid, job_id)
    wait_until(
        lambda: journal(grid, job_id).count("SlurmPendingObserved") > looks,
        "a look",
        PATIENCE_S,
        0.2,
    )
    assert "MoreThanPaid" not in journal(grid, job_id)
    assert size(grid, slurm_id) == before
    as_customer(grid, customer, "scancel", str(slurm_id))


@pytest.mark.parametrize(
    ("tasks", "words", "more"),
    [
        (1, "TresPerNode=gpu:2, TimeLimit=600", "GPUs: 2 instead of 1"),
        (1, "NumCPUs=1, MinMemoryCPU=200, NumCPUs=2", "memory: 400 instead of 200"),
        (4, f"TresPerJob=, TresPerNode=gpu:1, {FOUR_NODES}", "GPUs: 4 instead of 1"),
        in_chaos(4, f"MinMemoryNode=800, {FOUR_NODES}", "memory: 3200 instead of 800"),
        # SLURM never begins a job with more NumCPUs than its tasks want (BadConstraints)
        (1, "NumNodes=2", "nodes: 2 instead of 1"),
        # SLURM shows these as a request for one node
        (1, "ReqNodeList=node[1-2]", "nodes: 2 instead of 1"),
        in_chaos(1, "Features=fast*2", "nodes: 2 instead of 1"),
        # SLURM counts these CPUs as less than it gives
        (1, "NumCPUs=2-32, CPUsPerTask=8", "CPUs: 8 instead of 2"),
        in_chaos(
            2,
            "NumCPUs=4-32, MinCPUsNode=4, ReqNodeList=node[1-2]",
            "CPUs: 8 instead of 4",
        ),
        in_chaos(1, "Partition=other", "Partition: other instead of main"),
    ],
    ids=[
        "GPUs",
        "memory per CPU",
        "GPUs per node",
        "memory per node",
        "nodes",
        "named nodes",
        "nodes with a feature",
        "CPUs per task",
        "CPUs per node",
        "partition",
    ],
)
def test_changed__begun_before_a_look__is_cancelled_with_a_reason_and_an_alarm(
    grid: Grid, customer: Account, tasks: int, words: str, more: str
) -> None:
    scontrol(grid, "update", ALL_NODES, "state=drain", "reason=test")
    job_id = grid.submit_script(customer, SLEEPS, minutes=60, tasks=tasks, **SMALL)
    slurm_id = id_of(grid, job_id)
    wait_for_first_look(grid, job_id)
    grid.processes.kill(grid.fleet.find("worker"))
    for word in words.split(", "):
        change(grid, customer, slurm_id, word)
    scontrol(grid, "update", ALL_NODES, "state=resume")
    wait_for_state(grid, slurm_id, "RUNNING")
    grid.fleet.start_worker()
    job = wait_for_end(grid, job_id, PATIENCE_S)
    assert job.status is ChainStatus.CANCELLED
    assert more in job.last_error
    record = row_of(grid, job_id)
    assert job.final_cost_wei == record.elapsed_s // 60 * ChainPrices().of(
        job.definition
    )
    alarms = rows(grid, "SELECT details FROM alarms WHERE name = 'more_than_paid'")
    assert job_id in str(alarms[0].details)


def test_changed__its_looks_are_parked__is_found_by_the_sweep_and_cancelled(
    grid: Grid, customer: Account
) -> None:
    """If an owner holds his job for an hour, its poll is parked. With a changed name
    and log, the hooks report nothing.
    """
    scontrol(grid, "update", ALL_NODES, "state=drain", "reason=test")
    job_id = grid.submit_script(customer, SLEEPS, minutes=60, **SMALL)
    slurm_id = id_of(grid, job_id)
    wait_for_first_look(grid, job_id)
    with ledger(grid) as engine, engine.begin() as connection:
        connection.execute(text(PARKED), {"id": job_id})
    bigger = (
        "TresPerNode=gpu:2",
        "TimeLimit=600",
        "JobName=other",
        "StdOut=/dev/null",
        "Comment=other",
    )
    change(grid, customer, slurm_id, *bigger)
    scontrol(grid, "update", ALL_NODES, "state=resume")
    wait_for_state(grid, slurm_id, "RUNNING")
    assert "MoreThanPaid" not in journal(grid, job_id)
    sweep(grid)
    job = wait_for_end(grid, job_id, PATIENCE_S)
    assert job.status is ChainStatus.CANCELLED
    assert "GPUs: 2 instead of 1" in job.last_error


@pytest.mark.usefixtures("drained_nodes")
def test_changed_while_it_waits__its_looks_are_parked__the_sweep_has_it_put_back(
    grid: Grid, customer: Account
) -> None:
    """No look is due: the sweep finds the change, and asks for a look."""
    job_id = grid.submit_script(customer, SLEEPS, minutes=60, **SMALL)
    slurm_id = id_of(grid, job_id)
    wait_for_first_look(grid, job_id)
    with ledger(grid) as engine, engine.begin() as connection:
        connection.execute(text(PARKED), {"id": job_id})
    change(grid, customer, slurm_id, "TresPerNode=gpu:2", "JobName=other")
    sweep(grid)
    wait_until(
        lambda: size(grid, slurm_id) == as_paid(grid),
        "the size to be put back",
        PATIENCE_S,
        0.2,
    )
    assert "MoreThanPaid" in journal(grid, job_id)
    as_customer(grid, customer, "scancel", str(slurm_id))
    assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.CANCELLED


def test_sweep__between_looks__comes_before_slurm_forgets_a_jobs_size(
    grid: Grid,
) -> None:
    """The owner can put his job's looks far apart. Where there is no accounting, SLURM
    forgets its size.
    """
    last = "SELECT report ->> 'again_s' AS again_s FROM reconciliations WHERE report IS NOT NULL ORDER BY begun_at DESC LIMIT 1"
    config = slurm_of(grid).run("scontrol", "show", "config").stdout
    found = re.search(r"MinJobAge +(?:= )?(\d+) sec", config)
    assert found is not None
    in_time_s = interval_s(float("inf"), int(found[1]))
    assert in_time_s < int(found[1]) / 3

    def is_in_time() -> bool:
        sweeps = rows(grid, last)
        return bool(sweeps) and float(sweeps[0].again_s) == in_time_s

    wait_until(is_in_time, "a sweep that plans the next one in time", PATIENCE_S, 0.2)


def test_changed__ended_before_a_look__keeps_its_end_with_a_reason_and_an_alarm(
    grid: Grid, customer: Account
) -> None:
    scontrol(grid, "update", ALL_NODES, "state=drain", "reason=test")
    job_id = grid.submit_script(customer, "#!/bin/bash\nsleep 2\n", minutes=60, **SMALL)
    slurm_id = id_of(grid, job_id)
    wait_for_first_look(grid, job_id)
    grid.processes.kill(grid.fleet.find("worker"))
    change(grid, customer, slurm_id, "TresPerNode=gpu:2")
    scontrol(grid, "update", ALL_NODES, "state=resume")
    wait_for_state(grid, slurm_id, "COMPLETED")
    grid.fleet.start_worker()
    job = wait_for_end(grid, job_id, PATIENCE_S)
    assert job.status is ChainStatus.FINISHED
    assert "GPUs: 2 instead of 1" in job.last_error
    assert job_id in str(
        rows(grid, "SELECT details FROM alarms WHERE name = 'more_than_paid'")[
            0
        ].details
    )


@pytest.fixture(scope="module")
def running_job(grid: Grid, customer: Account) -> tuple[str, int]:
    """A job that runs, and its SLURM id."""
    script = "#!/bin/bash\nsleep 1800\n"
    job_id = grid.submit_script(customer, script, minutes=60, **SMALL)
    return job_id, running(grid, job_id)


@pytest.mark.parametrize("word", REFUSED_WHILE_IT_RUNS)
def test_changed_while_it_runs__to_a_bigger_size__slurm_refuses(
    grid: Grid, customer: Account, running_job: tuple[str, int], word: str
) -> None:
    _, slurm_id = running_job
    before = size(grid, slurm_id)
    words = ("scontrol", "update", f"JobId={slurm_id}", word)
    assert run_as_customer(grid, customer, *words).returncode != 0
    assert size(grid, slurm_id) == before


@pytest.mark.parametrize("word", TAKEN_WHILE_IT_RUNS)
def test_changed_while_it_runs__without_a_price__is_the_owners_choice(
    grid: Grid, customer: Account, running_job: tuple[str, int], word: str
) -> None:
    job_id, slurm_id = running_job
    allocated = size(grid, slurm_id)["tres-alloc"]
    change(grid, customer, slurm_id, word)
    look_and_leave_alone(grid, job_id)
    assert size(grid, slurm_id)["tres-alloc"] == allocated
    assert record_of(grid, slurm_id).state == "RUNNING"
    assert grid.chain.job(job_id).status is ChainStatus.RUNNING


def look_and_leave_alone(grid: Grid, job_id: str) -> None:
    """Poll a job that runs, and wait until the ledger has what the look saw. It must
    not have found too much: no time limit is put back, and no job is cancelled.
    """
    seen = journal(grid, job_id).count("SlurmRunningObserved")
    look(grid, job_id)
    wait_until(
        lambda: journal(grid, job_id).count("SlurmRunningObserved") > seen,
        "a look",
        PATIENCE_S,
        0.2,
    )
    assert "MoreThanPaid" not in journal(grid, job_id)
    undone = "SELECT 1 FROM effects WHERE job_id = :id AND kind IN ('top_up', 'cancel')"
    assert rows(grid, undone, id=job_id) == []


@pytest.mark.usefixtures("reservation")
def test_changed_while_it_runs__in_all_ways__is_known_by_its_id_and_billed(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, SLEEPS, minutes=60, **SMALL)
    slurm_id = running(grid, job_id)
    words = (*TAKEN_WHILE_IT_RUNS, "ReservationName=spare")
    change(grid, customer, slurm_id, *words)
    look_and_leave_alone(grid, job_id)
    as_customer(grid, customer, "scancel", str(slurm_id))
    wait_for_state(grid, slurm_id, "CANCELLED")
    look(grid, job_id)
    assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.CANCELLED
    (state, seconds), *_ = seconds_of_runs(grid, slurm_id)
    assert (state, row_of(grid, job_id).elapsed_s) == ("CANCELLED", seconds)


def test_time_limit_of_a_job_that_runs__raised_by_the_site__is_put_back(
    grid: Grid, customer: Account
) -> None:
    """Owners cannot raise it; a site's own programs may."""
    job_id = grid.submit_script(customer, SLEEPS, minutes=60, **SMALL)
    slurm_id = running(grid, job_id)
    scontrol(grid, "update", f"JobId={slurm_id}", "TimeLimit=600")
    look(grid, job_id)
    wait_until(
        lambda: size(grid, slurm_id)["TimeLimit"] == AS_PAID["TimeLimit"],
        "the time limit to be put back",
        PATIENCE_S,
        0.2,
    )
    assert record_of(grid, slurm_id).state == "RUNNING"
    as_customer(grid, customer, "scancel", str(slurm_id))


def test_size__rounded_up_by_slurm_itself__is_no_attack(
    grid: Grid, customer: Account
) -> None:
    script = "#!/bin/bash\nuntil [ -e ~/size-seen ]; do sleep 0.1; done\nsleep 4\n"
    job_id = grid.submit_script(customer, script, minutes=60, cpusPerTask=3)
    slurm_id = id_of(grid, job_id)
    wait_for_state(grid, slurm_id, "RUNNING")
    assert size(grid, slurm_id)["tres-alloc"].startswith("cpu=8,")
    (grid.users.home(customer.address) / "size-seen").touch()
    assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.FINISHED
    assert "MoreThanPaid" not in journal(grid, job_id)


def test_size__whole_nodes_while_the_prolog_runs__is_no_attack(
    grid: Grid, customer: Account, slow_prolog: Path
) -> None:
    """SLURM shows such a job as CONFIGURING: it does not run yet, and SLURM shows what
    was allocated to it.
    """
    job_id = grid.submit_script(
        customer, "#!/bin/bash\nsleep 1\n", minutes=60, cpusPerTask=3
    )
    slurm_id = id_of(grid, job_id)
    wait_for_state(grid, slurm_id, "CONFIGURING")
    wait_for_first_look(grid, job_id)
    slow_prolog.touch()
    assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.FINISHED
    assert "MoreThanPaid" not in journal(grid, job_id)
