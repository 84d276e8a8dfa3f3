"""The next release's migrations under a fleet of this release, with jobs under way."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import NullPool, create_engine, text

from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.options import GridOptions
from devgrid.processes import tail, wait_until
from supervisor_tasks.jobs.model import ChainStatus
from supervisor_tasks.ledger import migrations
from supervisor_tasks.ledger.migrations import newest_revision
from tests.support.audit import audit, violations
from tests.support.audit_evidence import gather
from tests.support.end_states import PATIENCE_S
from tests.support.grid_assertions import parked, rows, slurm_ids, wait_for_end
from tests.support.grids import BLOCK_TIME_S

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

SHORT = "#!/bin/bash\nsleep 1\n"
JOBS = 40
MAX_WAIT_S = 2.0
CHECK_EVERY_S = 0.05
FLEET_TABLES = ("jobs", "events", "effects", "callbacks", "transactions", "signatures")
NEXT = '''
"""All that a migration may do to the tables of a fleet."""

import sqlalchemy as sa
from alembic import op

from supervisor_tasks.ledger.migrations import online

revision = "next"
down_revision = {newest!r}
branch_labels = None
depends_on = None
old_processes_work = True

TEXTS = {{"jobs": "customer", "events": "name", "effects": "kind", "callbacks": "peer", "transactions": "purpose",
    "signatures": "hash"}}


def upgrade() -> None:
    for table, column in TEXTS.items():
        online.add_columns(table, sa.Column("added", sa.Text(), server_default=sa.text("'new'"), nullable=False))
        online.create_index(f"{{table}}_by_added", table, [column, "added"])
        online.replace_index(f"{{table}}_by_added", table, ["added"], where="added <> ''")
    online.add_columns("transactions", sa.Column("event_id", sa.BigInteger(), nullable=True))
    online.for_each_batch(
        "transactions", ("UPDATE transactions SET added = '' WHERE id > :after AND id <= :up_to", {{}})
    )
    online.add_foreign_key("transactions_event", "transactions", "event_id", "events", ondelete="SET NULL")
'''
# The fleet's statements that wait for a lock of a table or row, not for one of its own
# guards.
WAITING = text(
    """
    SELECT COALESCE(max(EXTRACT(EPOCH FROM clock_timestamp() - query_start)), 0)::float8 FROM pg_stat_activity
    WHERE application_name LIKE 'supervisor %' AND wait_event_type = 'Lock' AND wait_event <> 'advisory'
    """
)


class LongestWait:
    """How long a statement of the fleet waited at most."""

    def __init__(self, url: str) -> None:
        self.engine = create_engine(
            url, poolclass=NullPool, isolation_level="AUTOCOMMIT"
        )
        self.over = threading.Event()
        self.seconds = 0.0
        self.thread = threading.Thread(target=self._look)

    def __enter__(self) -> "LongestWait":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def _look(self) -> None:
        with self.engine.connect() as connection:
            while not self.over.wait(CHECK_EVERY_S):
                self.seconds = max(self.seconds, connection.scalar(WAITING) or 0.0)


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    running = Grid.start(GridOptions(block_time_s=BLOCK_TIME_S))
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


def next_release(folder: Path, url: str) -> Config:
    """The migrations of this release, and one more."""
    (folder / "next.py").write_text(NEXT.format(newest=newest_revision()))
    scripts = Path(migrations.__file__).parent
    config = Config(attributes={"url": url})
    config.set_main_option("script_location", str(scripts))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", f"{scripts / 'versions'}\n{folder}")
    return config


@pytest.mark.quiet_machine
def test_upgrade__every_table_of_a_fleet_at_work__no_job_notices(
    grid: Grid, tmp_path: Path
) -> None:
    customer, url = grid.new_customer(), grid.environment["DATABASE_URL"]
    job_ids = grid.submit_scripts(customer, SHORT, JOBS)
    submitted = "SELECT count(*) AS number FROM jobs WHERE slurm_id IS NOT NULL"
    wait_until(
        lambda: rows(grid, submitted)[0].number > JOBS // 8,
        "the first jobs",
        PATIENCE_S,
        0.1,
    )
    settled = "SELECT count(*) AS number FROM jobs WHERE state = 'SETTLED'"
    begun_at = rows(grid, settled)[0].number
    with LongestWait(url) as longest:
        command.upgrade(next_release(tmp_path, url), "next")
    max_wait_s = deadline(MAX_WAIT_S)
    assert begun_at < JOBS, "the jobs had ended before the upgrade began"
    more = grid.submit_scripts(customer, SHORT, JOBS // 8)
    for job_id in (*job_ids, *more):
        assert wait_for_end(grid, job_id, 2 * PATIENCE_S).status is ChainStatus.FINISHED
        assert len(slurm_ids(grid, job_id)) == 1
    everything = len(job_ids) + len(more)
    wait_until(
        lambda: rows(grid, settled)[0].number == everything,
        "the ledger to know",
        PATIENCE_S,
        0.2,
    )
    assert longest.seconds < max_wait_s
    assert parked(grid) == []
    for table in FLEET_TABLES:
        assert rows(
            grid,
            f"SELECT count(*) AS number FROM {table} WHERE added = 'new'",  # noqa: S608
        )[0].number
    assert "Traceback" not in tail(grid.folder / "log" / "worker.log", 5000)
    assert violations(audit(gather(grid.folder))) == []
