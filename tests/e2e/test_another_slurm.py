"""The SLURM that answers is another one, or has lost its memory: nothing is submitted,
ended or submitted again before it is the one that it was, or the operator says so.
"""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from devgrid.chain.model import Account
from devgrid.cluster.linux_users import Users
from devgrid.cluster.slurm import Slurm
from devgrid.cluster.sshd import Sshd
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from devgrid.state_folder import private_processes
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.commands import supervisor
from tests.support.end_states import scontrol
from tests.support.grid_assertions import (
    journal,
    ledger,
    rows,
    slurm_of,
    state_if_known,
    wait_for_end,
)
from tests.support.grids import BLOCK_TIME_S
from tests.support.slurmctld_state import copied
from tests.support.submission_env import authorized_keys_command

# minutes, as slurmctld is restarted each time; tests/integration has the rules
pytestmark = pytest.mark.chaos

WAITING = 5  # more than may be lost by chance
RUNS = "#!/bin/bash\ndate >> runs\n"


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    running = Grid.start(
        GridOptions(
            block_time_s=BLOCK_TIME_S,
            min_job_age_s=86_400,
            overrides={"SWEEP_EVERY_S": "3600", "SWEEP_GRACE_S": "1"},
            job_submit=False,  # the other SLURM has none either
        )
    )
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


@contextmanager
def another_slurm(grid: Grid) -> Iterator[tuple[Slurm, Sshd]]:
    """A second cluster, whose login node lets the fleet in, too."""
    with private_processes() as processes:
        users, spool = Users(processes.folder), processes.folder / "spool"
        spool.mkdir()
        slurm = Slurm.start(processes, users, spool=spool, nodes=1)
        try:
            yield (
                slurm,
                Sshd.start(
                    processes,
                    slurm.env(),
                    authorized_keys_command(grid.folder / "supervisor_key"),
                ),
            )
        finally:
            slurm.stop()


def alarms(grid: Grid) -> dict[str, dict[str, object]]:
    return {
        row.name: row.details for row in rows(grid, "SELECT name, details FROM alarms")
    }


def given_to_slurm(grid: Grid) -> int:
    number: int = rows(
        grid, "SELECT count(*) AS n FROM events WHERE name = 'SubmitStarted'"
    )[0].n
    return number


def all_jobs(slurm: Slurm) -> list[str]:
    return slurm.run(
        "squeue", "--noheader", "--all", "--states=all", "--format=%j"
    ).stdout.split()


def drain_nodes(grid: Grid) -> None:
    scontrol(grid, "update", "nodename=node[1-4]", "state=drain", "reason=test")


def resume_nodes(grid: Grid) -> None:
    # which fails where they are in use
    slurm_of(grid).run("scontrol", "update", "nodename=node[1-4]", "state=resume")


def runs(grid: Grid, customer: Account) -> int:
    file = grid.users.home(customer.address) / "runs"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_another_slurm__answers_at_the_address__gets_no_job_and_ends_no_job(
    grid: Grid, customer: Account
) -> None:
    drain_nodes(grid)
    queued = [grid.submit_script(customer, RUNS) for _ in range(2)]
    wait_until(
        lambda: {state_if_known(grid, job_id) for job_id in queued} == {"QUEUED"},
        "two jobs to wait",
        60.0,
    )
    services = grid.processes.find("services")
    grid.processes.kill(services, signal.SIGSTOP, wait=False)  # no script comes
    claimed = grid.submit_script(customer, RUNS)
    wait_until(lambda: state_if_known(grid, claimed) == "CLAIMED", "a claim", 60.0)
    grid.processes.kill(grid.fleet.find("worker"))
    grid.processes.kill(services, signal.SIGCONT, wait=False)
    given = given_to_slurm(grid)
    right = {
        name: grid.environment[name]
        for name in ("SLURM_SSH_ADDRESS", "SLURM_SSH_KNOWN_HOSTS")
    }
    with another_slurm(grid) as (slurm, sshd):
        grid.environment.update(
            SLURM_SSH_ADDRESS=sshd.address, SLURM_SSH_KNOWN_HOSTS=str(sshd.known_hosts)
        )
        grid.fleet.start_worker()
        try:
            wait_until(
                lambda: "slurm_cluster_mismatch" in alarms(grid), "the alarm", 60.0
            )
            wait_until(
                lambda: state_if_known(grid, claimed) == "READY", "the script", 60.0
            )
            refused = "SELECT 1 FROM effects WHERE job_id = :id AND attempts > 2 AND last_error LIKE :said"
            for job_id in (claimed, queued[0]):
                said = {
                    "id": job_id,
                    "said": f"found the SLURM cluster %{sshd.address}%",
                }
                wait_until(
                    lambda said=said: bool(rows(grid, refused, **said)),  # type: ignore[misc]
                    "some tries",
                    90.0,
                )
            assert all_jobs(slurm) == []
        finally:
            grid.processes.kill(grid.fleet.find("worker"))
            grid.environment.update(right)
    assert given_to_slurm(grid) == given
    assert {state_if_known(grid, job_id) for job_id in queued} == {"QUEUED"}
    details = alarms(grid)["slurm_cluster_mismatch"]
    assert details["at"] == sshd.address
    resume_nodes(grid)
    grid.fleet.start_worker()
    # the right one answers again: the operator need not do anything
    for job_id in (*queued, claimed):
        assert wait_for_end(grid, job_id, 90).status is ChainStatus.FINISHED
    assert runs(grid, customer) == 3
    assert "slurm_cluster_mismatch" not in alarms(grid)


def a_while_passes(grid: Grid, job_ids: list[str]) -> None:
    """For the ledger: the jobs were submitted long before slurmctld is started again,
    and after what was accepted.
    """
    with ledger(grid) as engine, engine.begin() as connection:
        earlier = text(
            "UPDATE events SET at = at - interval '10 minutes' WHERE job_id = ANY(:job_ids)"
        )
        connection.execute(earlier, {"job_ids": job_ids})
        connection.execute(
            text(
                "UPDATE facts SET since = since - interval '1 hour' WHERE name = 'slurm.accepted'"
            )
        )


def test_slurm__started_without_its_state__everything_waits_for_the_operator(
    grid: Grid, customer: Account
) -> None:
    before = runs(grid, customer)
    drain_nodes(grid)
    waiting = [grid.submit_script(customer, RUNS) for _ in range(WAITING)]
    wait_until(
        lambda: {state_if_known(grid, job_id) for job_id in waiting} == {"QUEUED"},
        "jobs to wait",
        60.0,
    )
    a_while_passes(grid, waiting)
    slurm = slurm_of(grid)
    grid.processes.kill(grid.processes.find("slurmctld"))
    slurm.start_controller("-c")
    drain_nodes(grid)
    wait_until(lambda: "slurm_state_lost" in alarms(grid), "the alarm", 90.0)
    later = grid.submit_script(customer, RUNS)  # not even claimed
    undecided = (
        "SELECT 1 FROM reconciliations WHERE report -> 'found' = CAST(:found AS jsonb)"
    )
    all_of_them = f'{{"needs_operator": {WAITING}}}'
    wait_until(
        lambda: bool(rows(grid, undecided, found=all_of_them)), "a second sight", 90.0
    )
    assert {state_if_known(grid, job_id) for job_id in waiting} == {"QUEUED"}
    assert all_jobs(slurm) == []
    assert state_if_known(grid, later) is None
    told = supervisor("cluster", "accept", "--yes", env=grid.environment)
    assert told.exit_code == 0, told.output
    resume_nodes(grid)
    for job_id in (*waiting, later):
        assert wait_for_end(grid, job_id, 120).status is ChainStatus.FINISHED
    stories = [journal(grid, job_id) for job_id in waiting]
    assert [
        (story.count("SubmissionLostBySlurm"), story.count("Submitted"))
        for story in stories
    ] == [(1, 2)] * WAITING
    assert runs(grid, customer) == before + WAITING + 1
    assert "slurm_state_lost" not in alarms(grid)


def test_slurm__gets_its_state_back__goes_on_by_itself(
    grid: Grid, customer: Account
) -> None:
    before = runs(grid, customer)
    drain_nodes(grid)
    waiting = [grid.submit_script(customer, RUNS) for _ in range(WAITING)]
    wait_until(
        lambda: {state_if_known(grid, job_id) for job_id in waiting} == {"QUEUED"},
        "jobs to wait",
        60.0,
    )
    a_while_passes(grid, waiting)
    slurm = slurm_of(grid)
    # it saves what it has
    grid.processes.kill(grid.processes.find("slurmctld"), signal.SIGTERM)
    folder, saved = slurm.layout.folder / "state", slurm.layout.folder / "saved"
    wait_until(lambda: copied(folder, saved), "a copy of the state", 30.0)
    shutil.rmtree(folder)
    folder.mkdir()
    slurm.start_controller()
    wait_until(lambda: "slurm_state_lost" in alarms(grid), "the alarm", 90.0)
    grid.processes.kill(grid.processes.find("slurmctld"))
    shutil.rmtree(folder)
    saved.rename(folder)
    slurm.start_controller()
    resume_nodes(grid)
    for job_id in waiting:
        assert wait_for_end(grid, job_id, 120).status is ChainStatus.FINISHED
    assert runs(grid, customer) == before + WAITING
    wait_until(
        lambda: "slurm_state_lost" not in alarms(grid), "the alarm to be over", 90.0
    )
    assert rows(grid, "SELECT 1 FROM switches") == []
