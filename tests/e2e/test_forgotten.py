"""SLURM forgets jobs before the worker polls them, and the site has no accounting. The
worker takes the ends that SLURM's hooks reported. Forged callbacks change nothing but
that the operator must decide. (Sites with accounting: test_ends_accounted.py.)
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest

from devgrid.chain.model import Account, ChainJob, ChainPrices
from devgrid.grid import Grid
from devgrid.options import GridOptions, Transport
from devgrid.processes import wait_until
from plugins.spool import CANCELLED, FAILED
from protos.supervisor.v1alpha1.supervisor_pb2 import (
    JOB_STATUS_FAILED,
    SetJobStatusRequest,
)
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.end_states import (
    as_customer,
    id_of,
    record_of,
    row_of,
    running,
    scontrol,
)
from tests.support.forged_callbacks import ANSWERS, forged_callbacks, send
from tests.support.grid_assertions import journal, parked, rows, slurm_of, wait_for_end
from tests.support.grids import BLOCK_TIME_S
from tests.support.slurm_records import SlurmJob, completed
from tests.support.transports import rest_in_chaos

pytestmark = rest_in_chaos

MIN_JOB_AGE_S = 2
PURGED_WITHIN_S = 150.0  # slurmctld looks for old jobs once a minute
FORGED = 600
MORE_FORGED = 300
TRIES = 5
SEED = 5  # half of the jobs get a forged end that could be true
MISREPORTED = 6
WORKS_S = 12
GATE = "go"
UNTIL_GO = f"until [ -e ~/{GATE} ]; do sleep 0.1; done\n"
LONG = "#!/bin/bash\nsleep 3500\n"  # 60 minutes are paid
WORKS = f"#!/bin/bash\nsleep {WORKS_S}\n{UNTIL_GO}exit {{}}\n"
STATUS_OF = {"COMPLETED": ChainStatus.FINISHED, "FAILED": ChainStatus.FAILED}


@dataclass(frozen=True)
class Forgotten:
    """Jobs that SLURM has forgotten: one whose owner gave it another name, one whose
    end a caller misreported, one that was suspended, one that waited, one whose node
    was lost, and those that forged callbacks are about.
    """

    renamed: str
    disputed: str
    suspended: str
    waited: str
    lost_node: str
    misreported: list[str]
    slurm_ids: dict[str, int]
    kills: int  # requests to cancel a job that slurmctld had got by then


@pytest.fixture(scope="module")
def grid(transport: Transport) -> Iterator[Grid]:
    running = Grid.start(
        GridOptions(
            transport=transport,
            block_time_s=BLOCK_TIME_S,
            min_job_age_s=MIN_JOB_AGE_S,
            job_submit=False,
            callback_key=False,
        )
    )
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def forgotten(grid: Grid, customer: Account) -> Forgotten:
    """The worker is down while the jobs end. It starts again when SLURM has forgotten
    them and forged callbacks have come.
    """
    slurm = slurm_of(grid)
    suspended = grid.submit_script(customer, f"#!/bin/bash\n{UNTIL_GO}")
    be_seen_suspended(grid, suspended)
    renamed, disputed = (
        grid.submit_script(customer, WORKS.format(code)) for code in (5, 0)
    )
    misreported = [
        grid.submit_script(customer, WORKS.format(number % 3))
        for number in range(MISREPORTED)
    ]
    lost_node = grid.submit_script(customer, LONG, cpusPerTask=8)
    ids = {
        job_id: running(grid, job_id)
        for job_id in (renamed, disputed, suspended, lost_node, *misreported)
    }
    # all nodes
    waited = grid.submit_script(customer, LONG, tasks=4, cpusPerTask=8)
    wait_until(
        lambda: "SlurmJobIdentified" in journal(grid, waited),
        "the job to wait",
        30.0,
        0.1,
    )
    ids[waited] = id_of(grid, waited)
    grid.processes.kill(grid.fleet.find("worker"))
    as_customer(
        grid,
        customer,
        "scontrol",
        "update",
        f"JobId={ids[renamed]}",
        "JobName=mine",
        "Comment=mine",
    )
    slurm.run("scancel", str(ids[waited]))
    node = record_of(grid, ids[lost_node]).node
    scontrol(grid, "update", f"nodename={node}", "state=down", "reason=test")
    (grid.users.home(customer.address) / GATE).touch()
    expected = {job_id: 1 if job_id == waited else 2 for job_id in ids}
    wait_until(
        lambda: {job_id: len(called(grid, job_id)) for job_id in ids} == expected,
        "callbacks",
        60.0,
        0.1,
    )
    wait_until(
        lambda: not listed(grid) & set(ids.values()),
        "slurmctld to forget the jobs",
        PURGED_WITHIN_S,
        1.0,
    )
    series = forged_callbacks(
        SEED, misreported, [ids[job_id] for job_id in misreported]
    )
    assert set(send(grid, list(islice(series, FORGED)), TRIES)) <= ANSWERS
    ran_for_nothing = SetJobStatusRequest(
        name=disputed, id=ids[disputed], status=JOB_STATUS_FAILED
    )
    assert send(grid, [ran_for_nothing], TRIES) == {"OK": 1}
    before = kills(grid)
    grid.fleet.start_worker()
    return Forgotten(
        renamed, disputed, suspended, waited, lost_node, misreported, ids, before
    )


def be_seen_suspended(grid: Grid, job_id: str) -> None:
    """Suspend the job until the worker has polled that."""
    slurm_id = str(running(grid, job_id))
    scontrol(grid, "suspend", slurm_id)
    seen = (
        "SELECT 1 FROM events WHERE job_id = :id AND details ->> 'seen' = 'SUSPENDED'"
    )
    wait_until(
        lambda: bool(rows(grid, seen, id=job_id)),
        "a poll to see it suspended",
        120.0,
        0.1,
    )
    scontrol(grid, "resume", slurm_id)


def called(grid: Grid, job_id: str) -> list[Any]:
    return rows(
        grid,
        "SELECT status, duration_s, exit_code FROM callbacks WHERE job_id = :id ORDER BY id",
        id=job_id,
    )


def listed(grid: Grid) -> set[int]:
    return {
        int(line)
        for line in slurm_of(grid)
        .run("squeue", "--noheader", "--states=all", "--format=%A")
        .stdout.split()
    }


def kills(grid: Grid) -> int:
    return (
        (grid.folder / "slurm" / "slurmctld.log").read_text().count("REQUEST_KILL_JOB")
    )


def truth(grid: Grid, slurm_id: int) -> SlurmJob:
    """SLURM's own record of the job's end."""
    return next(job for job in completed(grid.folder) if job.slurm_id == slurm_id)


def cost_of(job: ChainJob, said: SlurmJob) -> int:
    """What the whole minutes cost that SLURM's own record has."""
    return said.elapsed_s // 60 * ChainPrices().of(job.definition)


def test_forgotten__ended_and_renamed_by_its_owner__ends_with_its_true_figures(
    grid: Grid, forgotten: Forgotten
) -> None:
    job = wait_for_end(grid, forgotten.renamed)
    row = row_of(grid, forgotten.renamed)
    said = truth(grid, row.slurm_id)
    assert (job.status, job.exit_code, job.final_cost_wei) == (
        ChainStatus.FAILED,
        5 * 256,
        cost_of(job, said),
    )
    assert (row.elapsed_s, row.exit_status) == (said.elapsed_s, 5 * 256)
    assert row.elapsed_s >= WORKS_S
    assert "outcome_from_callback" in (grid.folder / "log" / "worker.log").read_text()


def test_forgotten__cancelled_while_it_waited__costs_nothing(
    grid: Grid, forgotten: Forgotten
) -> None:
    assert [
        (call.status, call.duration_s) for call in called(grid, forgotten.waited)
    ] == [(CANCELLED, 0)]
    job = wait_for_end(grid, forgotten.waited)
    assert (job.status, job.final_cost_wei) == (ChainStatus.CANCELLED, 0)


def test_forgotten__node_lost__has_failed_and_not_finished(
    grid: Grid, forgotten: Forgotten
) -> None:
    said = truth(grid, forgotten.slurm_ids[forgotten.lost_node])
    assert said.state == "NODE_FAIL"
    assert [tuple(call) for call in called(grid, forgotten.lost_node)][1:] == [
        (FAILED, said.elapsed_s, 0)
    ]
    job = wait_for_end(grid, forgotten.lost_node)
    assert (job.status, job.exit_code, job.final_cost_wei) == (
        ChainStatus.FAILED,
        0,
        cost_of(job, said),
    )
    assert job.last_error == "SLURM: NODE_FAIL, PREEMPTED, DEADLINE or BOOT_FAIL"


def test_forgotten__another_end_that_may_be_true__is_left_to_the_operator(
    grid: Grid, forgotten: Forgotten
) -> None:
    said = truth(grid, forgotten.slurm_ids[forgotten.disputed])
    assert said.elapsed_s >= WORKS_S
    either = rf"FINISHED after {said.elapsed_s} s, exit status 0; or FAILED after 0 s, exit status 0"
    is_left_to_the_operator(grid, forgotten.disputed, either)


def test_forgotten__seen_suspended__is_left_to_the_operator(
    grid: Grid, forgotten: Forgotten
) -> None:
    is_left_to_the_operator(
        grid, forgotten.suspended, r"FINISHED after \d+ s, exit status 0"
    )


def is_left_to_the_operator(grid: Grid, job_id: str, ends: str) -> None:
    wait_until(lambda: job_id in parked_jobs(grid), "the job to be parked", 60.0, 0.1)
    query = "SELECT evidence FROM effects WHERE job_id = :id AND parked_at IS NOT NULL"
    assert re.fullmatch(ends, rows(grid, query, id=job_id)[0].evidence["ends"])
    assert grid.chain.job(job_id).status is ChainStatus.RUNNING


def test_forged_callbacks__slurm_forgot_the_jobs__change_no_end_and_cancel_no_job(
    grid: Grid, forgotten: Forgotten
) -> None:
    misreported = set(forgotten.misreported)
    wait_until(
        lambda: misreported <= ended(grid) | parked_jobs(grid),
        "an end, or the operator's turn",
        60.0,
        0.1,
    )
    assert_ended_as_slurm_said_or_parked(grid, forgotten)
    assert misreported & ended(grid)
    asked = misreported & parked_jobs(grid)
    assert asked
    more = forged_callbacks(
        SEED + 1,
        sorted(asked),
        [forgotten.slurm_ids[job_id] for job_id in sorted(asked)],
    )
    assert set(send(grid, list(islice(more, MORE_FORGED)), TRIES)) <= ANSWERS
    unread = "SELECT 1 FROM callbacks WHERE read_at IS NULL"
    wait_until(
        lambda: not rows(grid, unread), "the stored callbacks to be read", 60.0, 0.1
    )
    wait_until(lambda: asked <= parked_jobs(grid), "the last look", 60.0, 0.1)
    assert_ended_as_slurm_said_or_parked(grid, forgotten)
    assert kills(grid) == forgotten.kills


def ended(grid: Grid) -> set[str]:
    return {
        row.job_id
        for row in rows(grid, "SELECT job_id FROM jobs WHERE state = 'SETTLED'")
    }


def parked_jobs(grid: Grid) -> set[str]:
    """The jobs that are left to the operator."""
    return {row.job_id for row in parked(grid) if row.kind == "poll_slurm"}


def assert_ended_as_slurm_said_or_parked(grid: Grid, forgotten: Forgotten) -> None:
    for job_id in forgotten.misreported:
        job, said = grid.chain.job(job_id), truth(grid, forgotten.slurm_ids[job_id])
        right = (STATUS_OF[said.state], said.exit_status, cost_of(job, said))
        active = (ChainStatus.RUNNING, 0, 0)
        expected = active if job_id in parked_jobs(grid) else right
        assert (job.status, job.exit_code, job.final_cost_wei) == expected
