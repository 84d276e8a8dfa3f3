"""Two fleets share one wallet by mistake: each has a database of its own; the settings
are copied, and all else is shared.

The chain gives each claim to one of them. Neither touches the other's jobs, both call
their operator, and every job ends as if there were one fleet.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
from sqlalchemy import create_engine, text

from devgrid.chain.model import Account
from devgrid.fleet import Fleet
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.ports import free_port
from devgrid.processes import tail, wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.jobs.model import ChainStatus
from tests.support import chaos_jobs
from tests.support.audit import audit, violations
from tests.support.audit_evidence import gather
from tests.support.grid_assertions import alarm_names, rows, wait_for, wait_for_end
from tests.support.grids import BLOCK_TIME_S

# minutes; unit and integration tests have the rules of foreign claims
pytestmark = pytest.mark.chaos

# Sweeps come often, with a short grace: a sweep is what could cancel or panic the jobs
# of another fleet.
SETTINGS = {"SWEEP_EVERY_S": "4", "SWEEP_GRACE_S": "3"}
AT_ONCE = 8
SWEEPS = 3


@dataclass(frozen=True)
class Twins:
    """One grid with two fleets: each Grid here has the settings of one of them."""

    first: Grid
    second: Grid

    def __iter__(self) -> Iterator[Grid]:
        return iter((self.first, self.second))


@pytest.fixture(scope="module")
def twins() -> Iterator[Twins]:
    first = Grid.start(GridOptions(block_time_s=BLOCK_TIME_S, overrides=SETTINGS))
    try:
        twins = Twins(
            first,
            replace(
                first,
                cluster=replace(first.cluster, environment=copied_settings(first)),
            ),
        )
        first.fleet.start(flower=False)
        Fleet(first.processes, twins.second.environment, "second-").start(flower=False)
        yield twins
    finally:
        first.stop()


def copied_settings(grid: Grid) -> dict[str, str]:
    """A copy of the settings with another ledger, cluster name, state folder and
    port.
    """
    engine = create_engine(
        grid.environment["DATABASE_URL"], isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        connection.execute(text("CREATE DATABASE second"))
    url = engine.url.set(database="second").render_as_string(hide_password=False)
    engine.dispose()
    state = grid.folder / "second"
    state.mkdir()
    own = {"DATABASE_URL": url, "CLUSTER_NAME": "second", "STATE_DIR": str(state)}
    return {**grid.environment, **own, "LISTEN_ADDRESS": f"127.0.0.1:{free_port()}"}


def hand_in(grid: Grid, customers: list[Account]) -> list[str]:
    """Submit jobs of several customers at once, so that both fleets find jobs to claim
    at the same time.
    """

    def submit(customer: Account) -> list[str]:
        return [
            chaos_jobs.finishing(grid, customer),
            chaos_jobs.failing(grid, customer),
        ]

    with ThreadPoolExecutor(len(customers)) as pool:
        return [
            job_id for submitted in pool.map(submit, customers) for job_id in submitted
        ]


def sweeps(grid: Grid) -> int:
    """How many sweeps saw all sources."""
    whole = (
        "SELECT count(*) AS n FROM reconciliations WHERE report->'unseen' = '{}'::jsonb"
    )
    return int(rows(grid, whole)[0].n)


def claimed(grid: Grid) -> set[str]:
    return {row.job_id for row in rows(grid, "SELECT job_id FROM jobs")}


def both_claim(twins: Twins, customers: list[Account]) -> list[str]:
    """Submit jobs until each fleet has claimed a few and has raised the alarm about the
    other one.
    """
    job_ids: list[str] = []

    def have_claimed_and_alarmed() -> bool:
        return all(
            len(claimed(grid)) >= 3
            and AlarmName.UNKNOWN_TRANSACTION_ON_ACCOUNT in alarm_names(grid)
            for grid in twins
        )

    def submit_more() -> bool:
        job_ids.extend(hand_in(twins.first, customers))
        return have_claimed_and_alarmed()

    wait_until(submit_more, "both fleets to claim and to see each other", 240.0, 0.5)
    return job_ids


@pytest.mark.timeout(900)
def test_two_fleets__one_wallet__each_job_is_one_fleets_and_ends_right(
    twins: Twins,
) -> None:
    grid = twins.first
    customers = [grid.new_customer() for _ in range(AT_ONCE // 2)]
    go = chaos_jobs.start_records(grid) / "go"
    long = [
        grid.submit_script(
            customer,
            chaos_jobs.marking(grid, f'until [ -e "{go}" ]; do sleep 0.1; done'),
        )
        for customer in customers
    ]
    for job_id in long:
        chaos_jobs.expect(grid, job_id, "FINISHED", runs=1, exit_status=0)
    job_ids = long + both_claim(twins, customers)
    cancelled = chaos_jobs.cancelled(grid, customers[0], chaos_jobs.RUNNING)
    topped_up = chaos_jobs.topped_up(grid, customers[1])
    for job_id in long:
        wait_for(grid, job_id, {ChainStatus.RUNNING}, 240.0)
    before = [sweeps(each) for each in twins]
    wait_until(
        lambda: all(
            sweeps(each) >= seen + SWEEPS
            for each, seen in zip(twins, before, strict=True)
        ),
        "sweeps of both, while jobs of both run",
        240.0,
        0.2,
    )
    go.touch()
    for job_id in [*job_ids, cancelled, topped_up]:
        wait_for_end(grid, job_id, 240.0)
    for each in twins:
        chaos_jobs.wait_for_rest(each, 240.0)
        assert AlarmName.UNKNOWN_TRANSACTION_ON_ACCOUNT in alarm_names(each)
    assert claimed(twins.first).isdisjoint(claimed(twins.second))
    found = violations(
        audit(gather(grid.folder, twins.second.environment["DATABASE_URL"]))
    )
    assert found == [], "\n".join(
        tail(grid.folder / "log" / f"{name}worker.log", 40) for name in ("", "second-")
    )
