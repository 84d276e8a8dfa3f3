"""No statement of a running fleet, nor of the operator's commands, reads a large table
of an old ledger as a whole.

The fleet's own processes do what they do; Postgres counts the sequential scans of each
table, and its log names the statements.
"""

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from devgrid import REPOSITORY
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from tests.support.grid_assertions import ledger, rows, wait_for_end
from tests.support.large_ledger import fill

SETTLED = 200_000
LARGE = (
    "jobs",
    "events",
    "effects",
    "callbacks",
    "transactions",
    "signatures",
    "benchmark_runs",
    "benchmark_results",
)
JOBS = 5
PATIENCE_S = 120.0
COMMANDS = (
    "status",
    "job list",
    "effect list",
    "alarm list",
    "sweep list",
    "tx list",
    "tx list --open",
    "log",
    "cluster list",
)

_OLD = (
    """
    INSERT INTO benchmark_runs (cluster, why, state, token, ended_at, hardware_digest, pricing_digest)
    SELECT :cluster, 'a measurement', 'DONE', n, now(), 'machines', 'terms' FROM generate_series(1, 5000) AS n
    """,
    """
    INSERT INTO benchmark_results (run_id, cluster, benchmark, state, job_name, run_as, options, script, ended_at, cleaned)
    SELECT id, cluster, 'osu' || n, 'MEASURED', token || '-' || n, 'benchmark', '[]', 'true', now(), true
    FROM benchmark_runs CROSS JOIN generate_series(1, 8) AS n
    """,
)
_SCANS = (
    "SELECT relname, seq_scan FROM pg_stat_user_tables WHERE relname = ANY(:tables)"
)
_LOG_ALL = ("ALTER SYSTEM SET log_statement = 'all'", "SELECT pg_reload_conf()")
_ENTRY = re.compile(
    r"^\d{4}-\d\d-\d\d \S+ \S+ \[\d+\] LOG:  (?:execute [^:]*|statement): ",
    re.MULTILINE,
)
_NEXT_ENTRY = re.compile(r"^\d{4}-\d\d-\d\d ", re.MULTILINE)

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    running = Grid.start(GridOptions(block_time_s=0.25))
    try:
        running.fleet.migrate()
        with ledger(running) as engine:
            fill_with_years(engine, running.environment["CLUSTER_NAME"])
        yield running
    finally:
        running.stop()


def fill_with_years(engine: Engine, cluster: str) -> None:
    # before the chain of the grid began
    fill(engine, cluster, settled=SETTLED, active=0, behind=2 * SETTLED)
    with engine.begin() as connection:
        for statement in _OLD:
            connection.execute(text(statement), {"cluster": cluster})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")
        for statement in _LOG_ALL:
            connection.exec_driver_sql(statement)


def scans(grid: Grid) -> dict[str, int]:
    """How often each large table was read as a whole so far."""
    return {row.relname: row.seq_scan for row in rows(grid, _SCANS, tables=list(LARGE))}


def supervisor(grid: Grid, *words: str) -> None:
    argv = [sys.executable, "-m", "supervisor_tasks.cli", *words]
    done = subprocess.run(
        argv,
        cwd=REPOSITORY,
        env=grid.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def sweeps_ended(grid: Grid) -> int:
    return int(rows(grid, "SELECT max(id) AS last FROM reconciliations")[0].last)


def all_have_run(grid: Grid) -> bool:
    """Whether what is done at intervals has succeeded since the fleet was started."""
    succeeded = {row.name for row in rows(grid, "SELECT name FROM periodic_runs")}
    return succeeded >= {"claim", "scan", "check_alarms", "sweep"}


def suspects(grid: Grid, scanned: set[str]) -> list[str]:
    """The statements in Postgres's log whose general plan reads one of the tables as a
    whole.
    """
    said = (grid.folder / "log" / "postgres.log").read_text()
    statements = set[str]()
    for entry in _ENTRY.finditer(said):
        end = _NEXT_ENTRY.search(said, entry.end())
        statements.add(said[entry.end() : end.start() if end else len(said)])
    with (
        ledger(grid) as engine,
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
    ):
        return [
            statement
            for statement in statements
            if scanned & tables_read_whole(connection, statement)
        ]


def tables_read_whole(connection: Connection, statement: str) -> set[str]:
    if statement.split(maxsplit=1)[0].upper() not in (
        "SELECT",
        "WITH",
        "UPDATE",
        "INSERT",
        "DELETE",
    ):
        return set()
    try:
        plan = connection.exec_driver_sql(
            f"EXPLAIN (GENERIC_PLAN) {statement.replace('%', '%%')}"
        ).scalars()
    except DBAPIError:
        # a statement of another kind of protocol; the count above is what is asserted
        return set()
    found = [re.search(r"Seq Scan on (\w+)", line) for line in plan]
    return {match[1] for match in found if match}


def test_fleet_at_work__in_a_ledger_of_years__reads_no_large_table_as_a_whole(
    grid: Grid,
) -> None:
    before = scans(grid)
    customer = grid.new_customer()
    grid.fleet.start(flower=False)
    job_ids = grid.submit_scripts(customer, "#!/bin/bash\nsleep 1\n", JOBS)
    cancelled = grid.submit_script(customer, "#!/bin/bash\nsleep 600\n")
    for job_id in job_ids:
        wait_for_end(grid, job_id, PATIENCE_S)
    grid.chain.customers.cancel_job(customer, cancelled)
    wait_for_end(grid, cancelled, PATIENCE_S)
    for words in COMMANDS:
        supervisor(grid, *words.split())
    supervisor(grid, "job", "show", job_ids[0])
    swept = sweeps_ended(grid)
    supervisor(grid, "sweep", "run", "--yes")
    wait_until(lambda: sweeps_ended(grid) > swept, "a sweep", PATIENCE_S)
    wait_until(lambda: all_have_run(grid), "each periodic task to succeed", PATIENCE_S)
    # what they have counted is there when their connections end
    for name in ("beat", "worker", "callbacks"):
        grid.processes.stop(grid.processes.find(name))
    scanned = {
        table: number - before[table]
        for table, number in scans(grid).items()
        if number > before[table]
    }
    assert scanned == {}, "\n".join(suspects(grid, set(scanned)))
