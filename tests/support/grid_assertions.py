"""Reads the state of a grid: the contract, SLURM's own records, the ledger. Two
functions change the ledger.
"""

import atexit
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from devgrid.chain.model import ChainError, ChainJob
from devgrid.cluster.slurm import Slurm
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.processes import tail, wait_until
from supervisor_tasks.jobs.model import ChainStatus

# a process may stand still between the check of a connection and its use
IDLE_S = 3.0
OPEN_EFFECTS = """
    SELECT kind, attempts, parked_at, due_at, lease_until, last_error FROM effects
    WHERE job_id = :id AND done_at IS NULL"""


def slurm_of(grid: Grid) -> Slurm:
    """The SLURM of the grid's cluster."""
    assert grid.slurm is not None
    return grid.slurm


def sbatch_without_the_fleet(
    grid: Grid, user: str, *words: str, command: str = "--wrap=sleep 600"
) -> int:
    """Submit a job of this user to SLURM as root, and return its id. `command` is the
    script's path, or what stands in its place.
    """
    uid = str(grid.users.add(user))
    options = [f"--uid={uid}", f"--gid={uid}", "--parsable", "--chdir=/", "--mem=10"]
    done = slurm_of(grid).run("sbatch", *options, "--output=/dev/null", *words, command)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def wait_for_end(grid: Grid, job_id: str, timeout_s: float = 60.0) -> ChainJob:
    """The job, once it is final on the contract."""
    return wait_for(
        grid, job_id, {status for status in ChainStatus if status.is_final}, timeout_s
    )


def wait_for(
    grid: Grid, job_id: str, statuses: set[ChainStatus], timeout_s: float = 60.0
) -> ChainJob:
    """The job, once it has one of these statuses on chain."""
    try:
        wait_until(
            lambda: grid.chain.job(job_id).status in statuses,
            f"{job_id} to be {statuses}",
            timeout_s,
            0.05,
        )
    except TimeoutError as error:
        raise AssertionError(
            f"{error}; is {grid.chain.job(job_id)}\n{evidence_of(grid, job_id)}"
        ) from error
    return grid.chain.job(job_id)


def sweep(grid: Grid) -> None:
    """Run a sweep to its end, as the operator does."""
    argv = [sys.executable, "-m", "supervisor_tasks.cli", "sweep", "run", "--yes"]
    subprocess.run(
        argv,
        env=grid.environment,
        check=True,
        capture_output=True,
        timeout=deadline(120),
    )


@contextmanager
def ledger(grid: Grid) -> Iterator[Engine]:
    """The grid's database."""
    yield _engine_of(grid.environment["DATABASE_URL"])


@cache
def _engine_of(url: str) -> Engine:
    """The engine of a database. It is kept, with its connections: tests query often,
    and a new connection costs Postgres 30 ms of CPU. Postgres closes unused
    connections, so that none delays its end.
    """
    idle_ms = int(deadline(IDLE_S) * 1000)
    engine = create_engine(
        url,
        pool_pre_ping=True,
        connect_args={"options": f"-c idle_session_timeout={idle_ms}"},
    )
    atexit.register(engine.dispose)
    return engine


def rows(grid: Grid, query: str, **parameters: object) -> list[Any]:
    """The rows that a query of the ledger returns."""
    with ledger(grid) as engine, engine.connect() as connection:
        return list(connection.execute(text(query), parameters))


def execute(grid: Grid, *statements: str, **parameters: object) -> None:
    """Change the grid's ledger by these statements, in one transaction."""
    with ledger(grid) as engine, engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement), parameters)


def journal(grid: Grid, job_id: str) -> list[str]:
    """The names of a job's events, in order."""
    return [
        row.name
        for row in rows(
            grid, "SELECT name FROM events WHERE job_id = :id ORDER BY id", id=job_id
        )
    ]


def slurm_ids(grid: Grid, job_id: str) -> list[int]:
    """The SLURM ids of all jobs with that name, with ended ones."""
    listed = slurm_of(grid).run(
        "squeue", "--noheader", "--states=all", f"--name={job_id}", "--format=%A"
    )
    return [int(number) for number in listed.stdout.split()]


def all_slurm_ids(slurm: Slurm) -> list[int]:
    """The SLURM ids of all jobs that SLURM lists, with ended ones, in order."""
    listed = slurm.run("squeue", "--noheader", "--states=all", "--format=%A")
    return sorted(int(number) for number in listed.stdout.split())


def job_record(grid: Grid, slurm_id: int) -> str:
    """What scontrol shows of a job, in one line."""
    argv = ("scontrol", "show", "job", str(slurm_id), "--oneliner")
    return slurm_of(grid).run(*argv).stdout


def parked(grid: Grid) -> list[Any]:
    """The effects that are parked."""
    return rows(
        grid, "SELECT job_id, kind, last_error FROM effects WHERE parked_at IS NOT NULL"
    )


def evidence_of(grid: Grid, job_id: str) -> str:
    """What is known of a job that has not done what a test waits for. A part that
    cannot be read is named with its error, so that it does not hide the others.
    """
    # fleet: `supervisor run`
    files = [grid.folder / "log" / name for name in ("worker.log", "fleet.log")]
    return "\n".join(
        [
            _read("events", lambda: " ".join(journal(grid, job_id))),
            _read("effects", lambda: str(rows(grid, OPEN_EFFECTS, id=job_id))),
            _read("SLURM", lambda: _in_slurm(grid, job_id)),
            *(
                line
                for file in files
                if file.exists()
                for line in (
                    *_lines_with(re.compile(job_id), file),
                    f"the last lines of {file.name}:",
                    tail(file, 30),
                )
            ),
        ]
    )


def slurm_log_lines(grid: Grid, slurm_id: int) -> list[str]:
    """What slurmctld and the nodes logged of a job."""
    of_job = re.compile(rf"\bjob(?:_?id)?[= ]{slurm_id}\b", re.IGNORECASE)
    files = sorted((grid.folder / "slurm").glob("slurm*.log"))
    return [line for file in files for line in _lines_with(of_job, file)]


def _read(name: str, read: Callable[[], str]) -> str:
    try:
        return f"{name}: {read()}"
    # a fleet with servers of its own leaves the grid's ledger without tables
    except (
        SQLAlchemyError,
        OSError,
        psutil.Error,
        subprocess.SubprocessError,
        AssertionError,
    ) as error:
        return f"{name}: not readable: {error!r:.300}"


def _in_slurm(grid: Grid, job_id: str) -> str:
    """Of each SLURM job of that name the record, the processes on the node with what
    each thread waits for in the kernel, and the lines that the daemons logged.
    """
    return "\n".join(_record_of(grid, number) for number in slurm_ids(grid, job_id))


def _record_of(grid: Grid, slurm_id: int) -> str:
    record = slurm_of(grid).run("scontrol", "show", "job", str(slurm_id)).stdout
    processes = [
        _read(str(member), partial(_waits_for, member.pid))
        for process in psutil.process_iter()
        for member in _step(process, slurm_id)
    ]
    return "\n".join([record.strip(), *processes, *slurm_log_lines(grid, slurm_id)])


def _step(process: psutil.Process, slurm_id: int) -> list[psutil.Process]:
    """The process and its descendants, if it is a node's process for the job."""
    with suppress(psutil.Error):  # it ends just now
        if " ".join(process.cmdline()).startswith(f"slurmstepd: [{slurm_id}."):
            return [process, *process.children(recursive=True)]
    return []


def _waits_for(pid: int) -> str:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return " ".join(f"{task.name}: {(task / 'wchan').read_text()}" for task in tasks)


def _lines_with(pattern: re.Pattern[str], file: Path) -> list[str]:
    lines = file.read_text(errors="replace").splitlines()
    return [line for line in lines if pattern.search(line)]


def state_of(grid: Grid, job_id: str) -> str:
    """The state of a job that the ledger has."""
    state = state_if_known(grid, job_id)
    assert state is not None, f"the ledger does not have {job_id}"
    return state


def state_if_known(grid: Grid, job_id: str) -> str | None:
    """The state of a job in the ledger; None of a job that it does not have."""
    found = rows(grid, "SELECT state FROM jobs WHERE job_id = :id", id=job_id)
    return str(found[0].state) if found else None


def fails_for_long(grid: Grid, job_id: str) -> None:
    """Make the failure five minutes old, so that the alarm is raised."""
    change = "UPDATE effects SET failing_since = failing_since - interval '6 min' WHERE job_id = :id"
    execute(grid, change, id=job_id)


def alarm(grid: Grid) -> str:
    """The details of the alarm about effects that fail for long, or nothing."""
    found = rows(grid, "SELECT details FROM alarms WHERE name = 'effect_overdue'")
    return str(found[0].details) if found else ""


def alarm_names(grid: Grid) -> set[str]:
    """The names of the alarms that are on, of all clusters of the ledger."""
    return {row.name for row in rows(grid, "SELECT name FROM alarms")}


def waiting_cpu_price_wei(grid: Grid) -> int | None:
    """The price of a CPU, in wei a minute, that waits for the admin's approval; None
    where nothing waits.
    """
    address = grid.chain.account("provider").address
    try:
        return grid.chain.providers.waiting(address).prices.cpu_wei_per_min
    except ChainError:
        return None
