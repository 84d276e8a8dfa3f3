"""A ledger on a real Postgres, for tests that need no more of a grid."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, text

from devgrid.fleet import REPOSITORY
from devgrid.grid import start_server
from devgrid.state import private_processes
from supervisor_tasks import embedded
from supervisor_tasks.events import Claimed, ScriptFetched, SubmitStarted, Submitted
from supervisor_tasks.job import Address, Definition, JobId, SlurmId
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.store import Change, Ledger
from supervisor_tasks.settings import load

TABLES = (
    "jobs, events, effects, callbacks, cursors, ticks, transactions, signatures, marks, blocks, alarms, switches, sweeps,"
    " facts, taken_marks, others_claims, benchmark_runs, benchmark_results"
)


@contextmanager
def migrated() -> Iterator[tuple[Engine, dict[str, str]]]:
    """An empty ledger and the environment of those who use it."""
    with private_processes() as processes:
        folder = processes.folder / "postgres"
        folder.mkdir()
        server = embedded.postgres(folder)
        start_server(processes, "postgres", server)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(processes.folder),
            "STATE_DIR": str(processes.folder),
            "DATABASE_URL": server.url,
            "CLUSTER_NAME": "here",
            "LC_ALL": "C.UTF-8",
        }
        argv = [sys.executable, "-m", "supervisor_tasks.cli", "db", "upgrade"]
        subprocess.run(argv, cwd=REPOSITORY, env=environment, check=True, capture_output=True)
        engine = open_engine(load(environment=environment))
        yield engine, environment
        engine.dispose()


def emptied(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"TRUNCATE {TABLES} CASCADE"))


def job_id(number: int) -> JobId:
    return JobId(f"0x{number:064x}")


def claim(number: int) -> Claimed:
    return Claimed(
        job_id=job_id(number),
        customer=Address("0x" + "2" * 40),
        provider=Address("0x" + "3" * 40),
        claim_key=f"claim:{number}",
        definition=Definition(gpus=0, mem_per_cpu_mb=100, cpus_per_task=1, ntasks=1, batch_location_hash="hash"),
        time_limit_min=10,
        at=(7, number),
    )


def bring_to_queued(ledger: Ledger, number: int) -> JobId:
    events = (claim(number), ScriptFetched("echo", ""), SubmitStarted(10), Submitted(SlurmId(100 + number)))
    ledger.record(*(Change(job_id(number), event) for event in events))
    return job_id(number)
