"""Measures the gRPC process: how many callbacks a second it stores and acknowledges,
and after how long.
"""

from sqlalchemy import text

from devgrid.grid import Grid
from devgrid.processes import wait_until
from tests.load.light_caller import Calls, Outcome, in_a_process
from tests.load.usage import cpu_s_of
from tests.support.grid_assertions import ledger, rows
from tests.support.load_figures import Figure, show

CALLERS = 32
CALLS = 10_000
OFFERED_A_SECOND = 300
OFFERED = 3_000
FIRST = 1 << 64  # no other measure has job ids from here on

# The process stores only a few callbacks of jobs that the ledger does not have.
_INSERT_JOBS = """
INSERT INTO jobs (cluster, job_id, slurm_id, state, customer, provider, claim_key, definition, time_limit_min, chain_status,
    chain_block, chain_log_index, grid_logger_url, top_ups, cancel_requested, poll_count, status_message)
SELECT :cluster, '0x' || lpad('1' || lpad(to_hex(number), 16, '0'), 64, '0'), 1, 'SETTLED', '', '', number,
    '{"gpus": 0, "mem_per_cpu_mb": 100, "cpus_per_task": 1, "ntasks": 1, "batch_location_hash": ""}', 1, 5,
    1, 1, '', '[]', false, 0, ''
FROM generate_series(0, :calls - 1) AS number
"""
_DELETE_JOBS = (
    "DELETE FROM callbacks WHERE job_id LIKE :made_up",
    "DELETE FROM jobs WHERE job_id LIKE :made_up",
)
_MADE_UP = "0x" + "0" * 47 + "1%"


def callbacks(grid: Grid) -> list[Figure]:
    """Measure the rate at which callers without a pause are acknowledged, and the wait
    at a fixed rate of calls.
    """
    insert_jobs(grid)
    try:
        unpaced = call(grid, Calls(FIRST, CALLS, CALLERS))
        wait_until_read(grid)
        paced = call(grid, Calls(FIRST + CALLS, OFFERED, CALLERS, OFFERED_A_SECOND))
        wait_until_read(grid)  # the workers lock the rows in an order of their own
    finally:
        delete_jobs(grid)
    rate = unpaced.answered / unpaced.seconds
    name = f"callback acknowledged, {OFFERED_A_SECOND} a second offered, p99"
    return [
        Figure(
            f"callbacks stored and acknowledged, {CALLERS} callers",
            rate,
            "a second",
            2000.0,
            at_least=True,
        ),
        Figure(name, paced.p99_ms(), "ms", 5.0),
    ]


def call(grid: Grid, calls: Calls) -> Outcome:
    """Make the calls; raises RuntimeError unless each of them is stored
    afterwards.
    """
    names = ("callbacks", "postgres")
    before, cpu_s = stored(grid), [cpu_s_of(grid, name) for name in names]
    outcome = in_a_process(
        grid.environment["PUBLIC_ADDRESS"], grid.folder / "tls" / "ca.pem", calls
    )
    used_us = [
        1e6 * (cpu_s_of(grid, name) - old) / calls.number
        for name, old in zip(names, cpu_s, strict=True)
    ]
    if stored(grid) - before != calls.number:
        raise RuntimeError(
            f"{calls.number} callbacks were acknowledged, and {stored(grid) - before} are stored"
        )
    shares = ", ".join(
        f"{name} {used:.0f}" for name, used in zip(names, used_us, strict=True)
    )
    show(
        f"    {outcome.answered / outcome.seconds:.0f} a second, p99 {outcome.p99_ms():.1f} ms; us of CPU each: {shares}"
    )
    return outcome


def insert_jobs(grid: Grid) -> None:
    """Insert the made-up jobs of the calls into the ledger."""
    with ledger(grid) as engine, engine.begin() as connection:
        parameters = {
            "cluster": grid.environment["CLUSTER_NAME"],
            "calls": CALLS + OFFERED,
        }
        connection.execute(text(_INSERT_JOBS), parameters)


def delete_jobs(grid: Grid) -> None:
    """Delete the made-up jobs and their callbacks."""
    with ledger(grid) as engine, engine.begin() as connection:
        for statement in _DELETE_JOBS:
            connection.execute(text(statement), {"made_up": _MADE_UP})


def wait_until_read(grid: Grid) -> None:
    """Wait until the workers have read all callbacks."""
    wait_until(lambda: unread(grid) == 0, "the callbacks to be read", 120.0, 0.5)


def unread(grid: Grid) -> int:
    """How many callbacks no worker has read."""
    return int(
        rows(grid, "SELECT count(*) AS n FROM callbacks WHERE read_at IS NULL")[0].n
    )


def stored(grid: Grid) -> int:
    """How many callbacks about made-up jobs are stored."""
    return int(
        rows(
            grid,
            "SELECT count(*) AS n FROM callbacks WHERE job_id LIKE :made_up",
            made_up=_MADE_UP,
        )[0].n
    )
