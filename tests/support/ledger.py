"""A ledger on a real Postgres, for tests that need nothing else of a grid."""

import atexit
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, NullPool, create_engine, text

from devgrid import REPOSITORY
from devgrid.processes import Processes
from devgrid.services.start import start_server
from devgrid.state_folder import new_state_folder, private_processes, remove
from supervisor_tasks.config import embedded_servers
from supervisor_tasks.config.embedded_servers import database_url
from supervisor_tasks.config.settings import load
from supervisor_tasks.execution.effect_failures import park
from supervisor_tasks.jobs.events import (
    Claimed,
    ScriptFetched,
    SubmitStarted,
    Submitted,
)
from supervisor_tasks.jobs.model import (
    Address,
    Definition,
    EffectKind,
    Job,
    JobId,
    SlurmId,
)
from supervisor_tasks.ledger.database import open_engine, read_connection
from supervisor_tasks.ledger.due import Execute
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.outbox import OpenEffect

TABLES = (
    "jobs, events, effects, callbacks, cursors, periodic_runs, transactions, signatures, instance_tags, blocks,"
    " alarms, switches, reconciliations, facts, adopted_tags, foreign_claims, benchmark_runs, benchmark_results, operator_log,"
    " counters, counter_increments, wallet_holders, alarm_incidents,"
    " alarm_messages, alarm_silences"
)


OF_ANOTHER_RELEASE = "alarm_of_another_release"
# the database that `supervisor db upgrade` makes; the tests use copies of it
MODEL = "model"


@contextmanager
def migrated() -> Iterator[tuple[Engine, dict[str, str]]]:
    """Yields an empty ledger, and the environment of a process that uses it."""
    name, admin = f"ledger_{secrets.token_hex(4)}", _server()
    with private_processes() as processes:
        _execute(admin, f"CREATE DATABASE {name} TEMPLATE {MODEL}")
        environment = _environment(processes.folder, admin.url.set(database=name))
        engine = open_engine(database_url(load(environment=environment)))
        yield engine, environment
        engine.dispose()
    _execute(admin, f"DROP DATABASE {name} WITH (FORCE)")


@cache
def _server() -> Engine:
    """The Postgres of all ledgers of this program. It starts once: the start and the
    migrations take seconds.
    """
    processes = Processes(new_state_folder())
    atexit.register(remove, processes)
    folder = processes.folder / "postgres"
    folder.mkdir()
    server = embedded_servers.postgres(folder)
    start_server(processes, "postgres", server)
    admin = create_engine(server.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    _execute(admin, f"CREATE DATABASE {MODEL}")
    argv = [sys.executable, "-m", "supervisor_tasks.cli", "db", "upgrade", "--yes"]
    environment = _environment(processes.folder, admin.url.set(database=MODEL))
    subprocess.run(
        argv, cwd=REPOSITORY, env=environment, check=True, capture_output=True
    )
    return admin


def _environment(folder: Path, database: URL) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "STATE_DIR": str(folder),
        "DATABASE_URL": database.render_as_string(hide_password=False),
        "CLUSTER_NAME": "here",
        "LC_ALL": "C.UTF-8",
    }


def _execute(admin: Engine, statement: str) -> None:
    with admin.connect() as connection:
        connection.execute(text(statement))


def emptied(engine: Engine) -> None:
    """Delete the rows of all tables."""
    with engine.begin() as connection:
        connection.execute(text(f"TRUNCATE {TABLES} CASCADE"))


def raise_alarm_of_another_release(engine: Engine, cluster: str = "here") -> None:
    """Write the alarm that a process of another release has raised; this one has no such
    name.
    """
    row = "INSERT INTO alarms (cluster, name, details) VALUES (:cluster, :name, '{}')"
    with engine.begin() as connection:
        connection.execute(text(row), {"cluster": cluster, "name": OF_ANOTHER_RELEASE})


def through(engine: Engine) -> Execute:
    """A function that executes a statement of the driver's form, as beat does, on this
    engine, whose statements tests count.
    """

    def execute(
        statement: str, parameters: Mapping[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        with read_connection(engine) as connection:
            result = connection.exec_driver_sql(statement, dict(parameters))
            return (
                [dict(row) for row in result.mappings()] if result.returns_rows else []
            )

    return execute


def job_id(number: int) -> JobId:
    """The id of the job with that number."""
    return JobId(f"0x{number:064x}")


def claim(number: int) -> Claimed:
    """The event of the claim of the job with that number, in block 7."""
    return Claimed(
        job_id=job_id(number),
        customer=Address("0x" + "2" * 40),
        provider=Address("0x" + "3" * 40),
        claim_key=f"claim:{number}",
        definition=Definition(
            gpus=0,
            mem_per_cpu_mb=100,
            cpus_per_task=1,
            ntasks=1,
            batch_location_hash="hash",
        ),
        time_limit_min=10,
        at=(7, number),
    )


def claimed_again(job: Job, block: int) -> Claimed:
    """The event of a later claim of a job that was given back."""
    return Claimed(
        job_id=job.job_id,
        customer=job.customer,
        provider=job.provider,
        claim_key="again:0",
        definition=job.definition,
        time_limit_min=job.time_limit_min,
        at=(block, 0),
    )


def let_time_pass(engine: Engine, seconds: float, facts: str = "%") -> None:
    """As when so much time has passed: for periodic runs, reconciliations, alarms, and
    for the facts of this pattern.
    """
    changes = (
        "periodic_runs SET succeeded_at = succeeded_at - make_interval(secs => :s)",
        "reconciliations SET finished_at = finished_at - make_interval(secs => :s)",
        "alarms SET seen_at = seen_at - make_interval(secs => :s)",
        "facts SET since = since - make_interval(secs => :s) WHERE name LIKE :facts",
    )
    with engine.begin() as connection:
        for change in changes:
            connection.execute(text(f"UPDATE {change}"), {"s": seconds, "facts": facts})


def bring_to_queued(ledger: Ledger, number: int) -> JobId:
    """Record the events of a job until SLURM has it, under the id 100 + number."""
    events = (
        claim(number),
        ScriptFetched("echo", ""),
        SubmitStarted(10),
        Submitted(SlurmId(100 + number)),
    )
    ledger.record(*(JobChange(job_id(number), event) for event in events))
    return job_id(number)


def park_one(
    ledger: Ledger, kind: EffectKind = EffectKind.POLL_SLURM, reason: str = "no"
) -> OpenEffect:
    """Park an open effect of this kind, after a refusal by SLURM in these words."""
    with ledger.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE effects SET due_at = now() - interval '1 s' WHERE done_at IS NULL"
            )
        )
    effect = ledger.effects.lease([kind])[0]
    park(ledger, effect, reason, error="SlurmRejectedError", said=reason)
    return effect
