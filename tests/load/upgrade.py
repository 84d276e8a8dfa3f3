"""`python -m tests.load.upgrade --jobs 200000`: applies every migration to an old
ledger while a fleet's statements run.

The tables of the first release are filled with settled jobs and their rows in other
tables. Then all migrations are applied. Meanwhile six threads write to the tables that
a fleet writes to for every job, each thread once the migration that makes its table has
run. A statement waits for as long as a fleet's would. `make bench` runs it too.
"""

import argparse
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Engine, NullPool, create_engine, text

from devgrid.services.start import start_server
from devgrid.state_folder import private_processes
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.ledger.migrations import pending, upgrade
from tests.support.fleet_statements import STATEMENTS
from tests.support.load_figures import Figure, show

JOBS = 200_000
FIRST = "0001"
PROMISED_S = 600.0  # for PROMISED_JOBS
PROMISED_JOBS = 5_000_000
MAX_WAIT_S = 2.0
EVERY_S = 0.02
CLUSTER = "main"

_NUMBERS = "FROM generate_series(1, :jobs) AS n"
_JOB_ID = "'0x' || lpad(to_hex(n), 64, '0')"
# Each settled job has six events, four effects, a callback, two reports and a claim, as
# after an ordinary journey.
FILL = (
    f"""
    INSERT INTO jobs (cluster, job_id, customer, provider, claim_key, definition, time_limit_min, state, chain_status,
        chain_block, chain_log_index, grid_logger_url, slurm_id, top_ups, cancel_requested, looks, outcome_status, elapsed_s,
        exit_status, reason, message, script)
    SELECT :cluster, {_JOB_ID}, '0x' || lpad(to_hex(n % 1000), 40, '0'), '0x' || repeat('3', 40), 'claim:' || n,
        '{{"gpus": 0, "ntasks": 1, "cpus_per_task": 1, "mem_per_cpu_mb": 100, "batch_location_hash": "hash"}}', 60,
        'SETTLED', 5, n, 0, '', n, '[]', false, 0, 5, 61, 0, '', '', repeat('x', 1000) {_NUMBERS}""",
    f"""
    INSERT INTO events (cluster, job_id, name, details, state)
    SELECT :cluster, {_JOB_ID}, name, '{{"at": [1, 2]}}', 'ENDED'
    {_NUMBERS}, unnest(ARRAY['Claimed', 'ScriptFetched', 'SubmitStarted', 'Submitted', 'SlurmEnded', 'Reported']) AS name""",
    f"""
    INSERT INTO effects (cluster, job_id, kind, due_at, done_at)
    SELECT :cluster, {_JOB_ID}, kind, now(), now() {_NUMBERS}, unnest(ARRAY['fetch', 'submit', 'witness', 'report']) AS kind""",
    f"""
    INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer, read_at)
    SELECT :cluster, {_JOB_ID}, n, 7, 61, 0, 'peer', now() {_NUMBERS}""",
    f"""
    INSERT INTO transactions (cluster, chain_id, address, nonce, purpose, job_id, intent, gas, max_fee_wei, priority_fee_wei,
        raw, hash, state, block_number, block_hash, done_at)
    SELECT :cluster, 1, '0x' || repeat('3', 40), 3 * n + step, CASE step WHEN 0 THEN 'claim' ELSE 'report' END,
        CASE step WHEN 0 THEN NULL ELSE {_JOB_ID} END, step || ':' || n, 21000, 1, 1,
        decode(repeat('00', 300), 'hex'), '0x' || lpad(to_hex(3 * n + step), 64, '0'), 'MINED', n, '0x00', now()
    {_NUMBERS}, generate_series(0, 2) AS step""",
    """
    INSERT INTO jobs (cluster, job_id, customer, provider, claim_key, definition, time_limit_min, state, chain_status,
        chain_block, chain_log_index, grid_logger_url, slurm_id, top_ups, cancel_requested, looks, message)
    VALUES (:cluster, '0xlive', '0x0', '0x0', 'live', '{}', 60, 'RUNNING', 3, CAST(:jobs AS bigint), 0, '', 0, '[]', false,
        0, '')""",
    """
    INSERT INTO effects (cluster, job_id, kind, due_at) VALUES (:cluster, '0xlive', 'fetch', now() + interval '1 day')""",
)
MADE_BY = {"signatures": "0003"}  # the first release has the other tables


@dataclass(slots=True)
class Statement:
    """The statement of a thread, and the longest time that it took."""

    table: str
    longest_s: float = 0.0
    times: int = 0
    errors: list[str] = field(default_factory=list)

    def execute(self, engine: Engine, over: threading.Event) -> None:
        """Execute it repeatedly until `over`, or until an error, which is kept: the
        table no longer takes the statement.
        """
        with engine.connect().execution_options(
            isolation_level="AUTOCOMMIT"
        ) as connection:
            while not over.is_set() and not self.errors:
                begun_s = time.monotonic()
                try:
                    connection.execute(text(STATEMENTS[self.table]))
                except Exception as error:  # noqa: BLE001  raised at the end
                    self.errors.append(repr(error))
                self.longest_s = max(self.longest_s, time.monotonic() - begun_s)
                self.times += 1
                over.wait(EVERY_S)


@contextmanager
def first_release(jobs: int) -> Iterator[tuple[Engine, str]]:
    """A database with the tables of the first release, filled."""
    with private_processes() as processes:
        folder = processes.folder / "postgres"
        folder.mkdir()
        server = embedded_servers.postgres(folder)
        server.argv.extend(["-c", "shared_buffers=256MB", "-c", "max_wal_size=4GB"])
        start_server(processes, "postgres", server)
        upgrade(server.url, FIRST)
        engine = create_engine(server.url, poolclass=NullPool)
        with engine.begin() as connection:
            # the foreign keys are right
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            for statement in FILL:
                connection.execute(text(statement), {"cluster": CLUSTER, "jobs": jobs})
        with engine.connect().execution_options(
            isolation_level="AUTOCOMMIT"
        ) as connection:
            connection.execute(text("VACUUM ANALYZE"))
        yield engine, server.url


def upgraded(jobs: int) -> tuple[float, list[Statement]]:
    """Apply all migrations. Returns their seconds, and the statements that ran
    meanwhile.
    """
    with first_release(jobs) as (engine, url):
        over, statements = threading.Event(), [Statement(table) for table in STATEMENTS]
        threads = {
            one.table: threading.Thread(target=one.execute, args=(engine, over))
            for one in statements
        }
        _start_those_made_by(FIRST, threads)
        begun_s = time.monotonic()
        try:
            for revision in pending(FIRST):
                show(f"    {time.monotonic() - begun_s:.1f} s: migration {revision}")
                upgrade(url, revision)
                _start_those_made_by(revision, threads)
            took_s = time.monotonic() - begun_s
        finally:
            over.set()
            for thread in threads.values():
                if thread.ident is not None:  # started
                    thread.join()
    failed = [f"{one.table}: {error}" for one in statements for error in one.errors]
    if failed:
        raise RuntimeError("; ".join(failed))
    return took_s, statements


def _start_those_made_by(
    revision: str, threads: Mapping[str, threading.Thread]
) -> None:
    """Start the threads that write to the tables which this migration has made."""
    for table, thread in threads.items():
        if MADE_BY.get(table, FIRST) == revision:
            thread.start()


def figures(jobs: int = JOBS) -> list[Figure]:
    """The seconds of the upgrade, with the bound for so many jobs, and of the longest
    statement.
    """
    took_s, statements = upgraded(jobs)
    for one in statements:
        show(
            f"    {one.table}: {one.times} statements, the longest took {one.longest_s:.2f} s"
        )
    longest_s = max(one.longest_s for one in statements)
    return [
        Figure(
            f"all migrations of a ledger of {jobs} jobs",
            took_s,
            "s",
            PROMISED_S * jobs / PROMISED_JOBS,
        ),
        Figure("longest statement of a fleet beside them", longest_s, "s", MAX_WAIT_S),
    ]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="upgrade", description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    for figure in figures(parser.parse_args().jobs):
        print(
            f"{figure.name}: {figure.value:.2f} {figure.unit} (bound {figure.bound:g}; load {os.getloadavg()[0]:.1f})"
        )


if __name__ == "__main__":
    main()
