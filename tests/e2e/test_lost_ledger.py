"""A ledger that is lost while its jobs run, wait and end. When all of it is, the new
one leaves them alone and raises an alarm, and when the operator decides so, takes them
in as they are. One from a backup knows by itself that they are its.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text

from devgrid import REPOSITORY
from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.audit import audit, violations
from tests.support.audit_evidence import gather
from tests.support.end_states import (
    PATIENCE_S,
    as_customer,
    id_of,
    record_of,
    running,
    scontrol,
)
from tests.support.grid_assertions import (
    all_slurm_ids,
    parked,
    rows,
    slurm_ids,
    slurm_of,
    wait_for_end,
)
from tests.support.grids import BLOCK_TIME_S

pytestmark = pytest.mark.chaos  # minutes

LONG = "#!/bin/bash\nsleep 600\n"
ENDS = "#!/bin/bash\nuntil [ -e ~/go ]; do sleep 0.2; done\nexit 5\n"
SHORT = "#!/bin/bash\nsleep 2\n"  # long enough for the audit to see that it ran
LOST = "lost_ledger"
# What both ledgers know of a job, only the second one knows to its end.
OF_ONE_LEDGER = (
    "one_ledger",
    "ledger_agrees",
    "fates",
    "callbacks_read",
    "nothing_left",
)


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    running = Grid.start(
        GridOptions(
            block_time_s=BLOCK_TIME_S,
            overrides={"SWEEP_GRACE_S": "2"},
            job_submit=False,
        )
    )
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


def stop_fleet(grid: Grid) -> None:
    for name in ("worker", "beat", "callbacks"):
        grid.processes.kill(grid.fleet.find(name))


def with_databases(grid: Grid, *statements: str) -> None:
    """Of a fleet that is stopped; {name} is its own database's."""
    url = make_url(grid.environment["DATABASE_URL"])
    engine = create_engine(url.set(database="template1"), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
            connection.execute(text(ended), {"name": url.database})
            for statement in statements:
                connection.execute(text(statement.format(name=url.database)))
    finally:
        engine.dispose()


def lose_ledger(grid: Grid) -> str:
    """The fleet gets an empty database under the old name. The URL of the old one, for
    the audit.
    """
    with_databases(
        grid, f'ALTER DATABASE "{{name}}" RENAME TO {LOST}', 'CREATE DATABASE "{name}"'
    )
    url = make_url(grid.environment["DATABASE_URL"])
    return url.set(database=LOST).render_as_string(hide_password=False)


def alarm(grid: Grid) -> dict[str, Any]:
    found = rows(grid, "SELECT details FROM alarms WHERE name = 'foreign_claims'")
    return found[0].details if found else {}


def supervisor(grid: Grid, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "supervisor_tasks.cli", *words]
    return subprocess.run(
        argv,
        cwd=REPOSITORY,
        env=grid.environment,
        capture_output=True,
        text=True,
        timeout=deadline(60),
    )


@pytest.fixture(scope="module")
def jobs(grid: Grid, customer: Account) -> dict[str, str]:
    """Jobs at every stage, when the fleet is killed."""
    over = grid.submit_script(customer, SHORT)
    wait_for_end(grid, over)
    runs, renamed, ends = (
        grid.submit_script(customer, script) for script in (LONG, LONG, ENDS)
    )
    for job_id in (runs, renamed, ends):
        running(grid, job_id)
    scontrol(grid, "update", "nodename=node[1-4]", "state=drain", "reason=test")
    queued, hidden = (
        grid.submit_script(customer, SHORT),
        grid.submit_script(customer, SHORT),
    )
    for number in (id_of(grid, queued), id_of(grid, hidden)):
        scontrol(grid, "hold", str(number))
    scontrol(grid, "update", "nodename=node[1-4]", "state=resume")
    for job_id in (renamed, hidden):
        about = f"JobId={id_of(grid, job_id)}"
        as_customer(
            grid, customer, "scontrol", "update", about, "JobName=mine", "Comment=mine"
        )
    services = grid.processes.find("services")
    grid.processes.kill(services, signal.SIGSTOP, wait=False)
    fresh = grid.submit_script(customer, SHORT)
    claimed = "SELECT 1 FROM jobs WHERE job_id = :id AND state = 'CLAIMED'"
    wait_until(
        lambda: bool(rows(grid, claimed, id=fresh)), "the claim", PATIENCE_S, 0.1
    )
    stop_fleet(grid)
    (grid.users.home(customer.address) / "go").touch()
    grid.processes.kill(services, signal.SIGCONT, wait=False)
    wait_until(
        lambda: state_of(grid, ends) == "FAILED", "SLURM to end one", PATIENCE_S, 0.2
    )
    active = {
        "runs": runs,
        "renamed": renamed,
        "ended": ends,
        "queued": queued,
        "hidden": hidden,
        "fresh": fresh,
    }
    return active | {"over": over}


def state_of(grid: Grid, job_id: str) -> str:
    return (
        slurm_of(grid)
        .run("squeue", "--noheader", "--states=all", f"--name={job_id}", "--format=%T")
        .stdout.strip()
    )


def test_lost_ledger__left_alone_until_the_operator_adopts_it__then_all_settle(
    grid: Grid, customer: Account, jobs: dict[str, str]
) -> None:
    active = {what: job_id for what, job_id in jobs.items() if what != "over"}
    old_rows = {
        row.job_id: row for row in rows(grid, "SELECT job_id, slurm_id FROM jobs")
    }
    before, statuses = (
        all_slurm_ids(slurm_of(grid)),
        {job_id: grid.chain.job(job_id).status for job_id in active.values()},
    )
    tag = rows(grid, "SELECT tag FROM instance_tags")[0].tag.hex()
    old_ledger = lose_ledger(grid)
    grid.fleet.start(flower=False)
    wait_until(
        lambda: alarm(grid).get("tags") == {tag: len(active)},
        "the alarm",
        PATIENCE_S,
        0.2,
    )
    assert "supervisor job adopt" in alarm(grid)["advice"]
    assert set(alarm(grid)["some"]) == set(active.values())
    other = grid.submit_script(customer, SHORT)  # nonces come from the chain
    assert wait_for_end(grid, other, PATIENCE_S).status is ChainStatus.FINISHED
    assert set(all_slurm_ids(slurm_of(grid))) - set(before) == set(
        slurm_ids(grid, other)
    )
    assert {
        job_id: grid.chain.job(job_id).status for job_id in active.values()
    } == statuses
    assert [row.job_id for row in rows(grid, "SELECT job_id FROM jobs")] == [other]

    refused = supervisor(grid, "job", "adopt", "00" * 8, "--yes")
    assert (refused.returncode, tag in refused.stderr) == (1, True)
    early = supervisor(grid, "job", "adopt", tag, "--yes")
    assert (early.returncode, "it wrote on chain" in early.stderr) == (1, True), (
        early.stderr
    )
    taken = supervisor(grid, "job", "adopt", tag, "--yes", "--yes-it-is-dead")
    assert (taken.returncode, taken.stdout.startswith(f"{len(active)} jobs")) == (
        0,
        True,
    ), taken.stderr
    ended = wait_for_end(grid, active["ended"], PATIENCE_S)
    assert (ended.status, ended.exit_code) == (ChainStatus.FAILED, 5 * 256)
    assert (
        wait_for_end(grid, active["fresh"], PATIENCE_S).status is ChainStatus.FINISHED
    )
    for what in ("queued", "hidden"):
        scontrol(grid, "release", str(old_rows[active[what]].slurm_id))
        assert (
            wait_for_end(grid, active[what], PATIENCE_S).status is ChainStatus.FINISHED
        )
    for what in ("runs", "renamed"):
        assert record_of(grid, old_rows[active[what]].slurm_id).state == "RUNNING"
        grid.chain.customers.cancel_job(customer, active[what])
        assert (
            wait_for_end(grid, active[what], PATIENCE_S).status is ChainStatus.CANCELLED
        )
        assert record_of(grid, old_rows[active[what]].slurm_id).state == "CANCELLED"

    settled = "SELECT job_id, slurm_id FROM jobs WHERE state = 'SETTLED'"
    wait_until(
        lambda: len(rows(grid, settled)) == len(active) + 1,
        "the ledger to know",
        PATIENCE_S,
        0.2,
    )
    ids = {row.job_id: row.slurm_id for row in rows(grid, settled)}
    assert {
        what: ids[job_id] for what, job_id in active.items() if what != "fresh"
    } == {
        what: old_rows[job_id].slurm_id
        for what, job_id in active.items()
        if what != "fresh"
    }
    assert jobs["over"] not in ids
    swept = ("sweep", "run", "--yes")
    wait_until(
        lambda: supervisor(grid, *swept).returncode == 0 and not alarm(grid),
        "the alarm to be off",
        PATIENCE_S,
    )
    wait_until(
        lambda: not rows(grid, "SELECT 1 FROM foreign_claims"),
        "the claims to be forgotten",
        PATIENCE_S,
    )
    assert parked(grid) == []
    undone = "SELECT kind FROM effects WHERE done_at IS NULL"
    wait_until(
        lambda: not rows(grid, undone), "nothing to be left to do", PATIENCE_S, 0.2
    )
    found = audit(gather(grid.folder, old_ledger))
    assert (
        violations([entry for entry in found if entry.check.name not in OF_ONE_LEDGER])
        == []
    )


def test_restored_ledger__jobs_claimed_since_the_backup__are_not_submitted_again(
    grid: Grid, customer: Account
) -> None:
    """One that runs, one that waits, and one that waits under a name of its owner's."""
    # so the ledger has an instance tag
    wait_for_end(grid, grid.submit_script(customer, SHORT), PATIENCE_S)
    stop_fleet(grid)
    with_databases(grid, 'CREATE DATABASE backup TEMPLATE "{name}"')
    grid.fleet.start(flower=False)
    runs = grid.submit_script(customer, LONG)
    running(grid, runs)
    scontrol(grid, "update", "nodename=node[1-4]", "state=drain", "reason=test")
    waits, hidden = (
        grid.submit_script(customer, SHORT),
        grid.submit_script(customer, SHORT),
    )
    before = {job_id: id_of(grid, job_id) for job_id in (runs, waits, hidden)}
    as_customer(
        grid,
        customer,
        "scontrol",
        "update",
        f"JobId={before[hidden]}",
        "JobName=mine",
        "Comment=mine",
    )
    stop_fleet(grid)
    with_databases(
        grid, 'DROP DATABASE "{name}"', 'ALTER DATABASE backup RENAME TO "{name}"'
    )
    known = all_slurm_ids(slurm_of(grid))
    grid.fleet.start(flower=False)

    def ids() -> dict[str, int]:
        found = rows(
            grid, "SELECT job_id, slurm_id FROM jobs WHERE slurm_id IS NOT NULL"
        )
        return {row.job_id: row.slurm_id for row in found if row.job_id in before}

    wait_until(
        lambda: ids().keys() == before.keys(),
        "the jobs to be taken in",
        PATIENCE_S,
        0.2,
    )
    assert (ids(), all_slurm_ids(slurm_of(grid))) == (before, known)
    scontrol(grid, "update", "nodename=node[1-4]", "state=resume")
    for job_id in (waits, hidden):
        assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.FINISHED
    grid.chain.customers.cancel_job(customer, runs)
    assert wait_for_end(grid, runs, PATIENCE_S).status is ChainStatus.CANCELLED
    assert all_slurm_ids(slurm_of(grid)) == known
    assert parked(grid) == []
