"""Jobs whose end the supervisor did not see, at a site with accounting: slurmctld has
forgotten them and given their ids to other jobs of the same Linux user, and accounting
is away for a while. All end with their true figures.
"""

from collections.abc import Iterator

import pytest

from devgrid.chain.model import Account, ChainPrices
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.end_states import (
    PATIENCE_S,
    as_customer,
    assert_home_without_write_permission_fails_the_job,
    id_of,
    own_job,
    row_of,
    scontrol,
)
from tests.support.grid_assertions import journal, parked, rows, slurm_of, wait_for_end
from tests.support.grids import BLOCK_TIME_S
from tests.support.slurmctld_state import remembering

ALL_NODES = "nodename=node[1-4]"
MIN_JOB_AGE_S = 2
REMEMBERED_S = 600
PURGED_WITHIN_S = 180.0  # slurmctld looks for old jobs once a minute
FIRST_ID, LAST_ID = 1, 15
FEW_IDS = (f"FirstJobId={FIRST_ID}", f"MaxJobId={LAST_ID + 1}")

GATE = "all-began"
UNTIL_ALL_BEGAN = f"until [ -e ~/{GATE} ]; do sleep 0.1; done"

SCRIPTS = {
    "failed": f"sleep 6; {UNTIL_ALL_BEGAN}; exit 5",
    "killed": f"sleep 6; {UNTIL_ALL_BEGAN}; kill -9 $$",
    "suspended": f"for second in 1 2 3 4 5 6; do sleep 1; done; {UNTIL_ALL_BEGAN}",
    "requeued": f"sleep 4; {UNTIL_ALL_BEGAN}; exit 3",
    "cancelled": "trap 'exit 7' TERM; sleep 300 & wait",
    "renamed": f"sleep 6; {UNTIL_ALL_BEGAN}; exit 4",
    "never ran": "true",
}
ENDS = {
    "failed": ("FAILED", ChainStatus.FAILED, 5 * 256),
    "killed": ("FAILED", ChainStatus.FAILED, 9),
    "suspended": ("COMPLETED", ChainStatus.FINISHED, 0),
    # the script's 3, or SLURM's 1 when the second launch fails
    "requeued": ("FAILED", ChainStatus.FAILED, None),
    "cancelled": ("CANCELLED", ChainStatus.CANCELLED, 0),
    "renamed": ("FAILED", ChainStatus.FAILED, 4 * 256),
    "never ran": ("CANCELLED", ChainStatus.CANCELLED, 0),
}


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    running = Grid.start(
        GridOptions(
            block_time_s=BLOCK_TIME_S,
            accounting=True,
            min_job_age_s=MIN_JOB_AGE_S,
            slurm_conf=FEW_IDS,
            job_submit=False,
        )
    )
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def jobs(grid: Grid, customer: Account) -> dict[str, str]:
    """Jobs that have run, ended and been forgotten by slurmctld while no worker was
    there.
    """
    scontrol(grid, "update", ALL_NODES, "state=drain", "reason=test")
    jobs = {
        what: grid.submit_script(customer, f"#!/bin/bash\n{body}\n")
        for what, body in SCRIPTS.items()
    }
    ids = {what: str(id_of(grid, job_id)) for what, job_id in jobs.items()}
    wait_until(
        lambda: all(
            "SlurmJobIdentified" in journal(grid, job_id) for job_id in jobs.values()
        ),
        "a look",
        PATIENCE_S,
        0.1,
    )
    grid.processes.kill(grid.fleet.find("worker"))
    scontrol(grid, "hold", ids["never ran"])
    as_customer(
        grid,
        customer,
        "scontrol",
        "update",
        f"JobId={ids['renamed']}",
        "JobName=other",
        "Comment=other",
    )
    scontrol(grid, "update", ALL_NODES, "state=resume")
    live = ",".join(number for what, number in ids.items() if what != "never ran")
    asked = ("squeue", "--noheader", f"--jobs={live}", "--format=%T")
    wait_until(
        lambda: (
            slurm_of(grid).run(*asked).stdout.split() == ["RUNNING"] * (len(ids) - 1)
        ),
        "all to run",
        PATIENCE_S,
        0.1,
    )
    scontrol(grid, "suspend", ids["suspended"])
    scontrol(grid, "update", f"JobId={ids['requeued']}", "Requeue=1")
    scontrol(grid, "requeue", ids["requeued"])
    as_customer(grid, customer, "scancel", "--full", ids["cancelled"])
    as_customer(grid, customer, "scancel", ids["never ran"])
    state = ("squeue", "--noheader", f"--jobs={ids['requeued']}", "--format=%T")
    wait_until(
        lambda: "PENDING" in slurm_of(grid).run(*state).stdout,
        "the requeue",
        PATIENCE_S,
        0.1,
    )
    (grid.users.home(customer.address) / GATE).touch()
    scontrol(grid, "update", f"JobId={ids['requeued']}", "StartTime=now")
    unsuspended = (
        "squeue",
        "--noheader",
        "--states=running,pending,completing",
        "--format=%A",
    )
    wait_until(
        lambda: not slurm_of(grid).run(*unsuspended).stdout,
        "the others to end",
        PATIENCE_S,
        0.2,
    )
    scontrol(grid, "resume", ids["suspended"])
    until_all_are_forgotten(grid)
    return jobs


def until_all_are_forgotten(grid: Grid) -> None:
    """Wait until slurmctld has no job."""
    everything = ("squeue", "--noheader", "--states=all", "--format=%A")
    wait_until(
        lambda: not slurm_of(grid).run(*everything).stdout,
        "slurmctld to forget all",
        PURGED_WITHIN_S,
        1.0,
    )


def accounted(grid: Grid, slurm_id: int, submit_s: int) -> tuple[str, int, int]:
    """State and exit status in accounting's record of that job's last run, and the
    seconds of all its runs.
    """
    argv = (
        "env",
        "SLURM_TIME_FORMAT=%s",
        "sacct",
        "--noheader",
        "--parsable2",
        "--allocations",
        "--duplicates",
    )
    shown = (
        slurm_of(grid)
        .run(*argv, f"--jobs={slurm_id}", "--format=Submit,State,ElapsedRaw,ExitCode")
        .stdout.split("\n")
    )
    records = sorted(line.split("|") for line in shown if line)
    earlier_s = 0
    for submitted, state, seconds, exit_code in records:
        if state == "REQUEUED":
            earlier_s += int(seconds)
        elif int(submitted) >= submit_s:
            code, signal = (int(part) for part in exit_code.split(":"))
            return state.split()[0], earlier_s + int(seconds), code * 256 + signal
    raise AssertionError(
        f"accounting has no record of {slurm_id} since {submit_s}: {records}"
    )


def test_accounting_away__jobs_known_to_slurmctld_go_on__others_stay_undecided(
    grid: Grid, customer: Account, jobs: dict[str, str]
) -> None:
    ids = {what: row_of(grid, job_id).slurm_id for what, job_id in jobs.items()}
    last = max(ids.values())
    others, strangers = set(ids.values()) - {last}, list[int]()
    # round the corner, and up to the id before our last one; where slurmctld left one
    # out, round the corner again
    while not others <= {*strangers} or strangers[-1] != last - 1:
        strangers.append(own_job(grid, customer, "exit 9"))
    with remembering(slurm_of(grid), REMEMBERED_S):  # until a look has seen the end
        grid.processes.kill(grid.processes.find("slurmdbd"))
        grid.fleet.start_worker()
        live = grid.submit_script(customer, "#!/bin/bash\nsleep 1\nexit 8\n")
        job = wait_for_end(grid, live, PATIENCE_S)
    assert (job.status, job.exit_code) == (ChainStatus.FAILED, 8 * 256)
    # two jobs of the ledger have had this id
    assert row_of(grid, live).slurm_id == last
    assert not [
        what
        for what, job_id in jobs.items()
        if "SlurmCompleted" in journal(grid, job_id)
    ]
    waiting = "SELECT 1 FROM effects WHERE kind = 'poll_slurm' AND done_at IS NULL AND last_error LIKE '%sacct%'"
    wait_until(
        lambda: len(rows(grid, waiting)) == len(jobs),
        "all others to wait for accounting",
        PATIENCE_S,
        0.1,
    )


@pytest.mark.parametrize("what", ENDS)
def test_forgotten__id_reused_by_the_same_user__ends_as_accounting_says(
    grid: Grid, jobs: dict[str, str], what: str
) -> None:
    if not any(entry.name == "slurmdbd" for entry in grid.processes.running()):
        grid.processes.start_again("slurmdbd")
    state, status, exit_status = ENDS[what]
    job = wait_for_end(grid, jobs[what], PATIENCE_S)
    row = row_of(grid, jobs[what])
    recorded = accounted(grid, row.slurm_id, row.slurm_submit_s)
    assert (recorded[0], job.status) == (state, status)
    assert exit_status in (None, job.exit_code)
    assert (row.elapsed_s, row.exit_status, job.exit_code) == (
        recorded[1],
        recorded[2],
        recorded[2],
    )
    assert job.final_cost_wei == recorded[1] // 60 * ChainPrices().of(job.definition)


def test_home__its_owner_cannot_write_it__has_failed_and_tells_why(grid: Grid) -> None:
    until_all_are_forgotten(grid)  # the ids are few
    with remembering(slurm_of(grid), REMEMBERED_S):
        assert_home_without_write_permission_fails_the_job(grid)


def test_accounted__at_the_end__nothing_is_parked(grid: Grid) -> None:
    assert parked(grid) == []
