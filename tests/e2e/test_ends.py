"""Each way in which SLURM ends a job, at a site without accounting: the status, the
seconds and the exit status that follow, over both ways to SLURM. The time limit:
test_journey.py, and test_without_login.py over slurmrestd.
"""

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.options import GridOptions, Transport
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.end_states import (
    PATIENCE_S,
    as_customer,
    assert_ended,
    assert_home_without_write_permission_fails_the_job,
    id_of,
    own_job,
    record_of,
    row_of,
    running,
    scontrol,
    wait_for_state,
)
from tests.support.grid_assertions import (
    execute,
    journal,
    parked,
    rows,
    slurm_of,
    wait_for_end,
)
from tests.support.grids import BLOCK_TIME_S
from tests.support.requeueing import begin_again, first_start_s, seconds_of_runs
from tests.support.transports import OnlySsh, only_ssh, rest_in_chaos

pytestmark = rest_in_chaos

ALL_NODES = "nodename=node[1-4]"
URGENT = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=CANCEL",
    "PartitionName=urgent Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP",
)
# The nodes of several private clusters have the same names, and so the same cgroups:
# the ids of jobs tell these apart.
LIMITED_MEMORY = (
    "TaskPlugin=task/cgroup",
    f"FirstJobId={random.randrange(10**6, 5 * 10**7)}",
)
MEMORY_CGROUP = Path("/sys/fs/cgroup/memory")
SLEEPS = "#!/bin/bash\nsleep 300\n"
# it runs for as long as the test needs
UNTIL = "#!/bin/bash\nuntil [ -e ~/{gate} ]; do sleep 0.1; done\n"


@pytest.fixture(scope="module")
def grid(transport: Transport) -> Iterator[Grid]:
    running_grid = Grid.start(
        GridOptions(
            transport=transport,
            block_time_s=BLOCK_TIME_S,
            slurm_conf=(*URGENT, *(LIMITED_MEMORY if MEMORY_CGROUP.is_dir() else ())),
            job_submit=False,  # owners change and requeue their jobs here
        )
    )
    try:
        running_grid.fleet.start(flower=False)
        yield running_grid
    finally:
        running_grid.stop()


@pytest.fixture
def drained_nodes(grid: Grid) -> Iterator[None]:
    scontrol(grid, "update", ALL_NODES, "state=drain", "reason=test")
    yield
    scontrol(grid, "update", ALL_NODES, "state=resume")


def test_preempted__by_a_partition_of_higher_priority__has_failed(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, SLEEPS)
    node = record_of(grid, running(grid, job_id)).node
    urgent = slurm_of(grid).run(
        *(
            "sbatch",
            "--parsable",
            "--partition=urgent",
            "--exclusive",
            f"--nodelist={node}",
            "--output=/dev/null",
        ),
        *("--wrap", "sleep 1"),
    )
    assert urgent.returncode == 0, urgent.stderr
    assert_ended(grid, job_id, "PREEMPTED", ChainStatus.FAILED)
    assert grid.chain.job(job_id).last_error == "SLURM: PREEMPTED"


@pytest.mark.skipif(
    not MEMORY_CGROUP.is_dir(),
    reason="this machine has no memory cgroups, and SLURM cannot limit memory",
)
def test_job__out_of_memory__has_failed(grid: Grid, customer: Account) -> None:
    takes = (
        "#!/bin/bash\nexec perl -e 'my $text = \"a\" x (400 * 1024 * 1024); sleep 60'\n"
    )
    job_id = grid.submit_script(customer, takes, memPerCpu=60)
    assert_ended(grid, job_id, "OUT_OF_MEMORY", ChainStatus.FAILED, exit_status=253)
    assert grid.chain.job(job_id).last_error == "SLURM: OUT_OF_MEMORY"


@pytest.mark.usefixtures("drained_nodes")
def test_deadline__that_cannot_be_met__has_failed_with_no_minute(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, SLEEPS, minutes=60)
    soon = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 1800))
    scontrol(grid, "update", f"JobId={id_of(grid, job_id)}", f"Deadline={soon}")
    assert assert_ended(grid, job_id, "DEADLINE", ChainStatus.FAILED).elapsed_s == 0
    assert grid.chain.job(job_id).last_error == "SLURM: DEADLINE"


@pytest.mark.usefixtures("drained_nodes")
def test_cancelled_by_its_owner__before_it_started__costs_nothing(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, SLEEPS)
    as_customer(grid, customer, "scancel", str(id_of(grid, job_id)))
    assert assert_ended(grid, job_id, "CANCELLED", ChainStatus.CANCELLED).elapsed_s == 0


def test_cancelled_by_owner__script_traps_the_signal__has_no_exit_status(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(
        customer, "#!/bin/bash\ntrap 'exit 7' TERM\nsleep 300 & wait\n"
    )
    as_customer(grid, customer, "scancel", "--full", str(running(grid, job_id)))
    assert_ended(grid, job_id, "CANCELLED", ChainStatus.CANCELLED)


def test_job__suspended_for_a_while__that_time_does_not_count(
    grid: Grid, customer: Account
) -> None:
    gate = grid.users.home(customer.address) / "resumed"
    job_id = grid.submit_script(customer, UNTIL.format(gate=gate.name))
    slurm_id = running(grid, job_id)
    scontrol(grid, "suspend", str(slurm_id))
    before, suspended_s = record_of(grid, slurm_id), time.monotonic()
    assert before.state == "SUSPENDED"
    wait_until(lambda: time.monotonic() - suspended_s > 6.0, "time to pass", 60.0)
    resumed_s = time.monotonic()
    scontrol(grid, "resume", str(slurm_id))
    gate.touch()
    record = assert_ended(grid, job_id, "COMPLETED", ChainStatus.FINISHED)
    assert record.elapsed_s - before.elapsed_s <= time.monotonic() - resumed_s + 1


def test_job__requeued__has_not_ended_and_all_its_runs_are_billed(
    grid: Grid, customer: Account
) -> None:
    gate = grid.users.home(customer.address) / "requeued"
    job_id = grid.submit_script(
        customer, f"{UNTIL.format(gate=gate.name)}sleep 4\nexit 3\n"
    )
    slurm_id = running(grid, job_id)
    first = record_of(grid, slurm_id)
    as_customer(grid, customer, "scontrol", "update", f"JobId={slurm_id}", "Requeue=1")
    as_customer(grid, customer, "scontrol", "requeue", str(slurm_id))
    wait_for_state(grid, slurm_id, "PENDING")
    assert "SlurmCompleted" not in journal(grid, job_id)
    gate.touch()
    # Else the supervisor has SLURM reject another requeue after the end, and squeue
    # shows that record.
    scontrol(grid, "update", f"JobId={slurm_id}", "Requeue=0")
    begin_again(grid, slurm_id)
    assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.FAILED
    last, row = record_of(grid, slurm_id), row_of(grid, job_id)
    assert last.submit_s > first.submit_s
    assert row.slurm_submit_s == last.submit_s
    ends = seconds_of_runs(grid, slurm_id)
    # Without accounting or a proven hook, the first run counts until SLURM queues the
    # job again, which may be a moment after the run's end.
    most_s = last.submit_s - first_start_s(grid, slurm_id) + ends[-1][1]
    assert sum(seconds for _, seconds in ends) <= row.elapsed_s <= most_s, (
        ends,
        row.runs,
    )


def test_job__owner_changes_name_comment_and_limit__is_followed_to_its_end(
    grid: Grid, customer: Account
) -> None:
    scontrol(grid, "update", ALL_NODES, "state=drain", "reason=test")
    gate = grid.users.home(customer.address) / "renamed"
    job_id = grid.submit_script(customer, f"{UNTIL.format(gate=gate.name)}exit 4\n")
    slurm_id = id_of(grid, job_id)
    wait_until(
        lambda: "SlurmJobIdentified" in journal(grid, job_id),
        "the first look",
        PATIENCE_S,
        0.1,
    )

    def change(word: str) -> None:
        changed = (f"JobName={word}", f"Comment={word}", "TimeLimit=30")
        as_customer(grid, customer, "scontrol", "update", f"JobId={slurm_id}", *changed)

    change("renamed")
    scontrol(grid, "update", ALL_NODES, "state=resume")
    assert running(grid, job_id) == slurm_id
    change("renamed-again")
    gate.touch()
    assert_ended(grid, job_id, "FAILED", ChainStatus.FAILED, 4 * 256)


@only_ssh(OnlySsh.SCRIPTS)
def test_job__renamed_before_the_first_look__is_identified(
    grid: Grid, customer: Account
) -> None:
    scontrol(grid, "update", ALL_NODES, "state=drain", "reason=test")
    job_id = grid.submit_script(customer, "#!/bin/bash\nexit 5\n")
    slurm_id = id_of(grid, job_id)
    grid.processes.kill(grid.fleet.find("worker"))
    as_customer(
        grid,
        customer,
        "scontrol",
        "update",
        f"JobId={slurm_id}",
        "JobName=other",
        "Comment=other",
    )
    with_no_time = (
        # as before the first look
        "UPDATE jobs SET slurm_submit_s = NULL WHERE job_id = :id RETURNING job_id"
    )
    execute(grid, with_no_time, id=job_id)
    scontrol(grid, "update", ALL_NODES, "state=resume")
    wait_for_state(grid, slurm_id, "FAILED")
    grid.fleet.start_worker()
    assert_ended(grid, job_id, "FAILED", ChainStatus.FAILED, 5 * 256)


def test_name_used_twice__by_the_same_owner__the_other_job_says_nothing_of_ours(
    grid: Grid, customer: Account
) -> None:
    gate = grid.users.home(customer.address) / "other-ended"
    job_id = grid.submit_script(customer, UNTIL.format(gate=gate.name))
    slurm_id = running(grid, job_id)
    other = own_job(grid, customer, "exit 9", f"--job-name={job_id}")
    assert other != slurm_id
    wait_for_state(grid, other, "FAILED")
    gate.touch()
    assert_ended(grid, job_id, "COMPLETED", ChainStatus.FINISHED)


def test_user__unresolvable_for_a_while__delays_neither_others_nor_its_running_job(
    grid: Grid, customer: Account
) -> None:
    other = grid.new_customer()
    jobs = [
        grid.submit_script(each, UNTIL.format(gate="unnamed"))
        for each in (customer, other)
    ]
    for job_id in jobs:
        running(grid, job_id)
    with unresolvable(grid, customer):
        for each in (customer, other):
            (grid.users.home(each.address) / "unnamed").touch()
        for job_id in jobs:
            assert_ended(grid, job_id, "COMPLETED", ChainStatus.FINISHED)


def test_user__unresolvable_when_he_cancels__is_cancelled_once_he_is_known(
    grid: Grid, customer: Account
) -> None:
    """It was parked: the job ran on until its limit."""
    job_id = grid.submit_script(customer, UNTIL.format(gate="never"))
    running(grid, job_id)

    def was_tried() -> bool:
        query = "SELECT * FROM effects WHERE job_id = :id AND kind = 'cancel'"
        found = rows(grid, query, id=job_id)
        return bool(found) and (found[0].last_error or found[0].done_at) is not None

    with unresolvable(grid, customer):
        grid.chain.customers.cancel_job(customer, job_id)
        wait_until(was_tried, "the cancellation to be tried", 30.0)
        assert job_id not in [row.job_id for row in parked(grid)]
    assert_ended(grid, job_id, "CANCELLED", ChainStatus.CANCELLED)


@contextmanager
def unresolvable(grid: Grid, customer: Account) -> Iterator[None]:
    """Inside this, no host of the site knows the customer's Linux user."""
    passwd = grid.users.folder / "passwd"
    named = passwd.read_text()
    unnamed = "".join(
        line
        for line in named.splitlines(keepends=True)
        if not line.startswith(customer.address)
    )
    assert unnamed != named
    rewrite(passwd, unnamed)
    try:
        yield
    finally:
        rewrite(passwd, named)


def rewrite(file: Path, text: str) -> None:
    """Replace a file at once. A program that reads it half written, and then looks for
    another modification time in whole seconds, never reads it again.
    """
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.replace(file)


def test_job__its_node_is_lost__has_failed_with_the_seconds_that_ran(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, SLEEPS)
    node = record_of(grid, running(grid, job_id)).node
    grid.processes.kill(grid.processes.find(f"slurmd-{node}"))
    scontrol(grid, "update", f"nodename={node}", "state=down", "reason=test")
    assert_ended(grid, job_id, "NODE_FAIL", ChainStatus.FAILED)
    assert grid.chain.job(job_id).last_error == "SLURM: NODE_FAIL"
    slurm = slurm_of(grid)
    slurm.start_node(int(node.removeprefix("node")))

    # one that slurmctld has not heard of yet cannot be resumed, nor one that is back
    # already
    def is_back() -> bool:
        slurm.run("scontrol", "update", f"nodename={node}", "state=resume")
        return slurm.run(
            "sinfo", "--noheader", f"--nodes={node}", "--format=%t"
        ).stdout.split() == ["idle"]

    wait_until(is_back, f"{node} to be idle", 60.0, 0.2)


def test_slurmctld__lost_its_memory__the_next_job_with_the_id_is_another_one(
    grid: Grid, customer: Account
) -> None:
    lost = grid.submit_script(
        customer, "#!/bin/bash\necho $PPID > ~/stepd\nsleep 300\n"
    )
    slurm_id = running(grid, lost)
    stepd_file = grid.users.home(customer.address) / "stepd"
    wait_until(
        lambda: stepd_file.exists() and bool(stepd_file.read_text()),
        "the script",
        PATIENCE_S,
    )
    stepd = Path("/proc", stepd_file.read_text().strip())
    slurm = slurm_of(grid)
    grid.processes.kill(grid.processes.find("slurmctld"))
    state = slurm.layout.folder / "state"
    for file in state.glob("job_state*"):
        file.unlink()
    for folder in state.glob("hash.*"):
        shutil.rmtree(folder)
    conf = slurm.layout.folder / "slurm.conf"
    conf.write_text(f"{conf.read_text()}FirstJobId={slurm_id}\n")
    slurm.start_controller()
    # slurmctld has the node end what it does not know: by its id, which the next job
    # gets
    wait_until(lambda: not stepd.exists(), "the node to end the lost job", PATIENCE_S)
    # The one that comes next is of the same customer.
    later = grid.submit_script(customer, "#!/bin/bash\nexit 6\n")
    assert wait_for_end(grid, later, PATIENCE_S).status is ChainStatus.FAILED
    assert id_of(grid, later) == slurm_id
    assert_ended(grid, later, "FAILED", ChainStatus.FAILED, 6 * 256)
    looks = looks_at(grid, lost)
    execute(
        grid,
        "UPDATE effects SET due_at = now() WHERE job_id = :id AND done_at IS NULL RETURNING id",
        id=lost,
    )
    wait_until(
        lambda: looks_at(grid, lost) > looks,
        "another look at the lost job",
        PATIENCE_S,
        0.1,
    )
    assert "SlurmCompleted" not in journal(grid, lost)
    assert grid.chain.job(lost).status is ChainStatus.RUNNING


def test_home__its_owner_cannot_write_it__has_failed_and_tells_why(grid: Grid) -> None:
    assert_home_without_write_permission_fails_the_job(grid)


def test_ends__at_the_end__nothing_is_parked(grid: Grid) -> None:
    assert parked(grid) == []


def looks_at(grid: Grid, job_id: str) -> int:
    looks: int = rows(
        grid, "SELECT poll_count FROM jobs WHERE job_id = :id", id=job_id
    )[0].poll_count
    return looks
