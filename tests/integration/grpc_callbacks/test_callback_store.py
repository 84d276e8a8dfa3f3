"""How Postgres finds what the statements that store callbacks ask, on the connection of
the gRPC process: by plans that are kept for a second.
"""

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from devgrid.processes import wait_until
from grpc_callbacks import callback_store
from grpc_callbacks.callback_limits import MAX_CALLBACKS
from grpc_callbacks.callback_store import CONNECT, CallbackStore
from supervisor_tasks.config.embedded_servers import database_url
from supervisor_tasks.config.settings import load
from supervisor_tasks.connections.postgres_url import for_libpq
from supervisor_tasks.ledger import callbacks_sql
from tests.support.ledger import migrated

CLUSTER = "here"
JOBS = 10_000
INSERT_JOBS = """
    INSERT INTO jobs (cluster, job_id, slurm_id, state, customer, provider, claim_key, definition, time_limit_min,
        chain_status, chain_block, chain_log_index, grid_logger_url, top_ups, cancel_requested, poll_count, status_message)
    SELECT %(cluster)s, '0x' || lpad(to_hex(number), 64, '0'), number, 'RUNNING', '', '', number, %(definition)s, 1, 3, 1, 1,
        '', '[]', false, 0, ''
    FROM generate_series(1, %(jobs)s) AS number
    """
ONE = {
    "cluster": CLUSTER,
    "job_id": f"0x{7:064x}",
    "slurm_id": 7,
    "status": 7,
    "duration_s": 61,
    "exit_code": 0,
    "peer": "10.0.0.1",
    "proof": "proven",
    "unknown_job": False,
    "proven": True,
    "most": 1000,
    "most_over": 10,
    "again_s": 30.0,
}
SEVERAL = {
    "job_ids": [ONE["job_id"]],
    "slurm_ids": [7],
    "statuses": [7],
    "durations_s": [61],
    "exit_codes": [0],
    "peers": ["10.0.0.1"],
    "proofs": ["proven"],
}
STATEMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "INSERT_OURS": (callbacks_sql.INSERT_OURS, ONE | SEVERAL),
    "KNOWN": (callbacks_sql.KNOWN, ONE | SEVERAL | {"proven": [True]}),
    "KEPT_EARLY": (callbacks_sql.KEPT_EARLY, ONE),
    "KEPT_UNKNOWN": (callbacks_sql.KEPT_UNKNOWN, ONE),
    "NEEDLESS": (callbacks_sql.NEEDLESS, ONE),
    "INSERT": (callbacks_sql.INSERT, ONE),
}


@pytest.fixture(scope="module", params=[False, True], ids=["not counted", "counted"])
def connection(request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    """A connection as that of the gRPC process, to a ledger whose jobs Postgres has
    counted, or has not yet.
    """
    with migrated() as (_, environment):
        url = for_libpq(database_url(load(environment=environment)))
        with psycopg.connect(
            url, autocommit=True, prepare_threshold=1, **CONNECT
        ) as opened:
            about = {"cluster": CLUSTER, "jobs": JOBS, "definition": Jsonb({})}
            opened.execute(INSERT_JOBS, about)
            if request.param:
                opened.execute("ANALYZE")
            yield opened


@pytest.mark.parametrize("name", STATEMENTS)
def test_statement__given_several_times__has_one_plan_that_reads_few_rows(
    connection: psycopg.Connection[Any], name: str
) -> None:
    """A plan for unknown values is bad if it joins all jobs of a cluster."""
    statement, values = STATEMENTS[name]
    for _ in range(3):
        connection.execute(statement, values, prepare=True)
    ((prepared, plans),) = [
        (found, (generic, custom))
        for found, text, generic, custom in connection.execute(
            "SELECT name, statement, generic_plans, custom_plans FROM pg_prepared_statements"
        )
        if _words(text) == _words(re.sub(r"%\(\w+\)s", "$", statement))
    ]
    assert plans == (3, 0)
    names = dict.fromkeys(re.findall(r"%\((\w+)\)s", statement))
    given = ", ".join(f"%({each})s" for each in names)
    explain = f"EXPLAIN (ANALYZE, TIMING OFF) EXECUTE {prepared} ({given})"
    plan = "\n".join(
        line for (line,) in psycopg.ClientCursor(connection).execute(explain, values)
    )
    assert not re.search("Seq Scan on (jobs|callbacks)|Hash Join|Merge", plan), plan
    read = [int(rows) for rows in re.findall(r"Scan.*?actual rows=(\d+)", plan)]
    assert max(read, default=0) < JOBS / 10, plan


def test_store__first_callback_came_into_an_empty_ledger__jobs_are_found_by_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For an empty table the planner takes one index for as good as another."""
    monkeypatch.setattr(callback_store, "PLAN_FOR_S", 0.0)
    with migrated() as (_, environment):
        url = database_url(load(environment=environment))
        store = CallbackStore(url, CLUSTER, MAX_CALLBACKS)
        numbers = iter(range(JOBS // 2, JOBS))

        def store_one() -> None:
            number = next(numbers)
            of_job = {"job_id": f"0x{number:064x}", "slurm_id": number}
            store.store([ONE | of_job])

        for _ in range(3):
            store_one()
        with psycopg.connect(for_libpq(url), autocommit=True) as other:
            about = {"cluster": CLUSTER, "jobs": JOBS, "definition": Jsonb({})}
            other.execute(INSERT_JOBS, about)

            def looked_up_and_read() -> tuple[int, int]:
                """How often an index of jobs was searched, and the rows it gave."""
                return other.execute(
                    "SELECT sum(idx_scan), sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'jobs'"
                ).fetchone() or (0, 0)

            scans, rows = looked_up_and_read()

            def is_counted() -> bool:
                store_one()
                return looked_up_and_read()[1] > rows

            wait_until(is_counted, "Postgres to count what it read", 60.0, 0.1)
            scans_now, rows_now = looked_up_and_read()
            assert rows_now - rows <= 2 * (scans_now - scans)
        store.close()


def _words(statement: str) -> list[str]:
    """The words of a statement, with each parameter as `$`."""
    return re.sub(r"\$\d+", "$", statement).split()
