"""`python -m tests.support.load_sweep`: measures a sweep over ten thousand active jobs,
and the monitor with a thousand callbacks.

It counts the SLURM commands and RPC requests of the sweep, when all is well and when
SLURM does not list some jobs. The chain, sshd and Postgres are real. The jobs are
written straight into the ledger and into the contract's storage, and squeue and sacct
are programs that print what SLURM would. `make bench` runs it too.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery
from eth_utils.crypto import keccak
from sqlalchemy import text

from devgrid.grid import Grid
from devgrid.processes import wait_until
from supervisor_tasks.bootstrap import build
from supervisor_tasks.chain.rpc.client import Call, Rpc
from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import load
from supervisor_tasks.jobs.model import ChainStatus, JobId
from supervisor_tasks.jobs.monitor import poll_jobs
from supervisor_tasks.ledger.cursor_names import CONTRACT_STREAM
from supervisor_tasks.ledger.facts import PROVIDER
from supervisor_tasks.ledger.reconciliations import Reconciliation
from supervisor_tasks.lifecycle import Worker
from supervisor_tasks.messaging.queues import Queue
from supervisor_tasks.reconciliation.run import sweep
from supervisor_tasks.slurm.parsers import CommandAnswer
from supervisor_tasks.slurm.squeue import FIELDS
from supervisor_tasks.slurm.ssh import Ssh
from supervisor_tasks.slurm_lookup.cluster_check import record_controller_start
from tests.support.ledger import emptied
from tests.support.load_figures import Figure, show

JOBS = 10_000
JOBS_SLOT = 1  # of the mapping in JobRepository's storage, after that of AccessControl
AT_ONCE = 1000

MISSING = 500
CALLBACKS = 1000

SQUEUE = """#!/bin/sh
# Prints a recorded list with the delimiter that the caller chose, or the answer about some jobs, and records the call.
echo called >> '{folder}/slurm-calls'
case "$*" in *--jobs=*) printed=answer;; *) printed=listing;; esac
exec sed "s/@DELIMITER@/${{SQUEUE_FORMAT2##*|}}/g" '{folder}'/$printed
"""
SACCT = """#!/bin/sh
# Has no record of any job.
echo called >> '{folder}/slurm-calls'
"""


WAITING_JOBS = (
    """
    INSERT INTO jobs (cluster, job_id, customer, provider, claim_key, definition, time_limit_min, state, chain_status,
        chain_block, chain_log_index, script, grid_logger_url, slurm_id, slurm_submit_s, top_ups, cancel_requested, poll_count,
        status_message)
    SELECT :cluster, '0x' || lpad(to_hex(:first + n), 64, '0'),
        (CAST(:users AS text[]))[n % :customers + 1], :provider, 'claim:' || n,
        '{"gpus": 0, "mem_per_cpu_mb": 1, "cpus_per_task": 1, "ntasks": 1, "batch_location_hash": ""}', 60,
        'QUEUED', 2, 1, 0, 'true', '', :first + n, 1700000000, '[]', false, 0, ''
    FROM generate_series(0, :jobs - 1) AS n
    """,
    """
    INSERT INTO effects (cluster, job_id, kind, due_at)
    SELECT cluster, job_id, 'poll_slurm', now() + interval '10 minutes' FROM jobs
    """,
    """
    INSERT INTO events (cluster, job_id, name, details, state)
    SELECT cluster, job_id, event.name, '{}', 'QUEUED'
    FROM jobs, unnest(CAST(ARRAY['SubmitStarted', 'Submitted'] AS text[])) AS event(name)
    """,
)


@dataclass(frozen=True, slots=True)
class PolledJobs:
    """One pass of the monitor: its seconds, and the number of its SLURM commands."""

    seconds: float
    commands: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One sweep: its seconds by its own report, and the number of its SLURM commands
    and RPC requests.
    """

    seconds: float
    commands: int
    requests: int
    report: dict[str, Any]


def figures() -> list[Figure]:
    """The most time, commands and requests that the sweep and the monitor take."""
    grid = Grid.start()
    try:
        prepare(grid)
        sweeps, polls = measure(grid)
    finally:
        grid.stop()
    for one in sweeps:
        show(
            f"    {one.seconds:.2f} s, {one.commands} SLURM commands, {one.requests} RPC requests: {one.report['seconds']}"
        )
        show(
            f"    jobs {one.report['jobs']}, found {one.report['found']}, unseen {one.report['unseen']}"
        )
    found = []
    for what, some, bound_s in (
        (f"sweep of {JOBS} jobs", sweeps[:-1], 1.0),
        (f"the same, {MISSING} of them missing", sweeps[-1:], 5.0),
    ):
        found += [
            Figure(what, max(one.seconds for one in some), "s", bound_s),
            Figure(
                f"{what}: SLURM commands", max(one.commands for one in some), "", 3.0
            ),
            Figure(
                f"{what}: RPC requests", max(one.requests for one in some), "", 20.0
            ),
        ]
    what = f"monitor of {CALLBACKS} callbacks"
    return [
        *found,
        Figure(f"{what}, without chain time", polls.seconds, "s", 3.0),
        Figure(f"{what}: SLURM commands", polls.commands, "", 1.0),
    ]


def prepare(grid: Grid) -> None:
    """Make an empty ledger, and start the gRPC process, from which sshd gets the keys.
    No other process of the fleet runs.
    """
    grid.fleet.migrate()
    grid.fleet.start_callbacks()


def measure(
    grid: Grid,
    jobs: int = JOBS,
    missing: int = MISSING,
    callbacks: int = CALLBACKS,
    sweeps: int = 3,
) -> tuple[list[Measured], PolledJobs]:
    """Make the jobs and sweep some times, the last time with some jobs missing in
    SLURM. Then run the monitor once, with callbacks about the ends of other jobs.
    """
    job_ids = [JobId(f"0x{number:064x}") for number in range(1, jobs + 1)]
    customer, provider = (
        grid.new_customer().address,
        grid.chain.account("provider").address,
    )
    put_on_chain(grid, job_ids, customer, provider)
    record_slurm(grid, job_ids, customer)
    calls = grid.folder / "slurm-calls"
    paths = {
        "SLURM_SQUEUE_PATH": str(grid.folder / "squeue"),
        "SLURM_SACCT_PATH": str(grid.folder / "sacct"),
    }
    settings = load(
        Need.SLURM,
        environment=grid.environment
        | paths
        | {"SLURM_ACCOUNTING": "true", "LOG_LEVEL": "warning"},
    )
    worker = build(
        settings, {Queue.SLURM}, Celery(broker=grid.environment["BROKER_URL"])
    )
    try:
        put_into_ledger(worker, jobs, customer, provider, grid.chain.block_number())
        found = [one_sweep(worker, calls) for _ in range(sweeps)]
        list_jobs(grid, "listing", job_ids[:-missing], customer, "RUNNING")
        found.append(one_sweep(worker, calls))
        if found[-1].report["found"] != {"missing": missing} or any(
            one.report["unseen"] for one in found
        ):
            raise RuntimeError(
                f"the sweeps found something else: {[one.report for one in found]}"
            )
        return found, one_poll(grid, worker, job_ids[:callbacks], customer)
    finally:
        worker.close()


def one_sweep(worker: Worker, calls: Path) -> Measured:
    """Sweep once, and measure what it took and asked."""
    before = called(calls)
    with counted_requests() as requests:
        sweep(worker.context, "a measurement")
    swept: Reconciliation = worker.context.ledger.reconciliations.last()[0]
    took_s = (swept.finished_at - swept.begun_at).total_seconds()
    return Measured(took_s, called(calls) - before, len(requests), swept.report)


def forget_waiting_jobs(
    grid: Grid, customers: int, jobs_each: int
) -> list[tuple[int, dict[str, int]]]:
    """Sweep three times over waiting jobs that a killed slurmctld forgot without a
    trace. Returns, of the second and the third sweep, how many commands each ran on the
    login node and what it found.
    """
    provider, first = grid.chain.account("provider").address, 5000
    record_slurm(grid, [], "")
    users = [f"0x{number:040x}" for number in range(1, customers + 1)]
    job_ids = [
        JobId(f"0x{number:064x}")
        for number in range(first, first + customers * jobs_each)
    ]
    for place, user in enumerate(users):
        grid.users.add(user)
        put_on_chain(
            grid, job_ids[place::customers], user, provider, ChainStatus.SCHEDULED
        )
    paths = {
        "SLURM_SACCT_PATH": str(grid.folder / "sacct"),
        "SLURM_ACCOUNTING": "true",
        "SWEEP_GRACE_S": "1",
    }
    settings = load(
        Need.SLURM, environment=grid.environment | paths | {"LOG_LEVEL": "warning"}
    )
    worker = build(
        settings, {Queue.SLURM}, Celery(broker=grid.environment["BROKER_URL"])
    )
    try:
        ledger = worker.context.ledger
        emptied(ledger.engine)
        ledger.facts.set(PROVIDER, provider)
        cluster = worker.context.slurm.cluster
        record_controller_start(
            ledger, cluster.site.controller(), 0.0, cluster.clock.now_s()
        )
        where = {
            "cluster": ledger.cluster,
            "first": first,
            "jobs": len(job_ids),
            "users": users,
            "customers": customers,
        }
        with ledger.engine.begin() as connection:
            ledger.cursors.set(
                connection, CONTRACT_STREAM, grid.chain.block_number(), ""
            )
            for statement in WAITING_JOBS:
                connection.execute(text(statement), where | {"provider": provider})
        sweep(worker.context, "the first sight")
        found = []
        for sight in ("second", "third"):
            wait_until(
                lambda: ledger.reconciliations.begin("doubts").previous_doubts_s != {},
                "doubts",
                30.0,
            )
            wait_until(
                lambda: (
                    min(ledger.reconciliations.begin("ages").previous_doubts_s.values())
                    > 1.1
                ),
                "the doubts to be older",
                30.0,
            )
            with counted_commands() as commands:
                sweep(worker.context, f"the {sight} sight")
            found.append(
                (len(commands), ledger.reconciliations.last()[0].report["found"])
            )
        return found
    finally:
        worker.close()


def called(calls: Path) -> int:
    """How often squeue and sacct were called."""
    return len(calls.read_text().splitlines()) if calls.exists() else 0


def one_poll(
    grid: Grid, worker: Worker, job_ids: Sequence[JobId], customer: str
) -> PolledJobs:
    """Run the monitor once: a callback about the end of each job is stored, and
    SLURM confirms it. Its time ends with the last commit in the ledger.
    """
    ledger = worker.context.ledger
    list_jobs(grid, "answer", job_ids, customer, "COMPLETED")
    with ledger.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE effects SET due_at = now() + interval '1 hour' WHERE done_at IS NULL"
            )
        )
        connection.execute(
            text(
                """
                INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer)
                SELECT :cluster, '0x' || lpad(to_hex(n), 64, '0'), n, 7, 60, 0, '' FROM generate_series(1, :jobs) AS n
                """
            ),
            {"cluster": ledger.cluster, "jobs": len(job_ids)},
        )
    calls = grid.folder / "slurm-calls"
    before, began_s = called(calls), time.monotonic()
    poll_jobs(worker.context)
    took_s = time.monotonic() - began_s
    ended = ledger.count_in_states(["ENDED"])
    if ended != len(job_ids) or ledger.callbacks.has_unread():
        raise RuntimeError(f"{ended} of {len(job_ids)} jobs have ended")
    return PolledJobs(took_s, called(calls) - before)


@contextmanager
def counted_commands() -> Iterator[list[Sequence[str]]]:
    """Yields the list of the commands that run on the login node meanwhile."""
    run, commands = Ssh.run, list[Sequence[str]]()

    def counted(
        self: Ssh, user: str, argv: Sequence[str], *args: Any, **kwargs: Any
    ) -> CommandAnswer:
        commands.append(argv)
        return run(self, user, argv, *args, **kwargs)

    Ssh.run = counted  # type: ignore
    try:
        yield commands
    finally:
        Ssh.run = run  # type: ignore[method-assign]


@contextmanager
def counted_requests() -> Iterator[list[int]]:
    """Yields the list of the sizes of the RPC batches that are sent meanwhile."""
    request, sizes = Rpc._request, list[int]()

    def counted(self: Rpc, batch: Sequence[Call]) -> list[Any]:
        sizes.append(len(batch))
        return request(self, batch)

    Rpc._request = counted  # type: ignore
    try:
        yield sizes
    finally:
        Rpc._request = request  # type: ignore[method-assign]


def put_on_chain(
    grid: Grid,
    job_ids: Sequence[JobId],
    customer: str,
    provider: str,
    status: ChainStatus = ChainStatus.RUNNING,
) -> None:
    """Write jobs of this status into the contract's storage: the id; status and
    customer in one word; the provider.
    """
    calls = []
    for job_id in job_ids:
        first = int.from_bytes(
            keccak(bytes.fromhex(job_id[2:]) + JOBS_SLOT.to_bytes(32, "big")), "big"
        )
        status_and_customer = int(customer, 16) << 8 | status
        for place, word in enumerate(
            (int(job_id, 16), status_and_customer, int(provider, 16))
        ):
            slot = (grid.chain.addresses.jobs, hex(first + place), f"0x{word:064x}")
            calls.append(("anvil_setStorageAt", slot))
    grid.chain.rpc.batch(calls, AT_ONCE)
    job = grid.chain.job(job_ids[-1])
    if (job.status, job.customer, job.provider) != (status, customer, provider):
        raise RuntimeError(f"the contract keeps its jobs elsewhere: {job}")


def record_slurm(grid: Grid, job_ids: Sequence[JobId], customer: str) -> None:
    """Write a squeue that lists the jobs, and a sacct that has no record."""
    for name, program in (("squeue", SQUEUE), ("sacct", SACCT)):
        (grid.folder / name).write_text(program.format(folder=grid.folder))
        (grid.folder / name).chmod(0o755)
    list_jobs(grid, "listing", job_ids, customer, "RUNNING")


def list_jobs(
    grid: Grid, file: str, job_ids: Sequence[JobId], customer: str, state: str
) -> None:
    """Write the list that squeue prints."""
    comment = f"supervisor {grid.environment['PUBLIC_ADDRESS']}"
    shown = {
        "UserName": customer,
        "State": state,
        "TimeUsed": "1:00",
        "exit_code": "0",
        "Reason": "None",
    }
    shown |= {
        "SubmitTime": "1700000000",
        "RestartCnt": "0",
        "Comment": comment,
        "STDOUT": "/nowhere",
    }
    shown |= {
        "TimeLimit": "1:00:00",
        "StartTime": "1700000001",
        "Partition": "main",
        "NumTasks": "1",
    }
    shown |= {"tres-alloc": "cpu=1,mem=1M,node=1,billing=1"}
    with (grid.folder / file).open("w") as out:
        for number, job_id in enumerate(job_ids, start=1):
            own = shown | {"JobID": str(number), "Name": job_id}
            out.write(
                "".join(f"{own.get(field, '')}|@DELIMITER@" for field in FIELDS) + "\n"
            )


def put_into_ledger(
    worker: Worker, jobs: int, customer: str, provider: str, head: int
) -> None:
    """Insert running jobs that the monitor polls."""
    ledger = worker.context.ledger
    ledger.facts.set(PROVIDER, provider)
    where = {
        "cluster": ledger.cluster,
        "jobs": jobs,
        "customer": customer,
        "provider": provider,
    }
    with ledger.engine.begin() as connection:
        ledger.cursors.set(connection, CONTRACT_STREAM, head, "")
        connection.execute(
            text(
                """
                INSERT INTO jobs (cluster, job_id, customer, provider, claim_key, definition, time_limit_min, state,
                    chain_status, chain_block, chain_log_index, script, grid_logger_url, slurm_id, slurm_submit_s, top_ups,
                    cancel_requested, poll_count, status_message)
                SELECT :cluster, '0x' || lpad(to_hex(n), 64, '0'), :customer, :provider, 'claim:' || n,
                    '{"gpus": 0, "mem_per_cpu_mb": 1, "cpus_per_task": 1, "ntasks": 1, "batch_location_hash": ""}', 60,
                    'RUNNING', 3, 1, 0, repeat('# a script of ten kilobytes', 400), '', n, 1700000000, '[]', false, 0, ''
                FROM generate_series(1, :jobs) AS n
                """
            ),
            where,
        )
        connection.execute(
            text(
                """
                INSERT INTO effects (cluster, job_id, kind, due_at)
                SELECT cluster, job_id, 'poll_slurm', now() + interval '10 minutes' FROM jobs
                """
            )
        )
    with ledger.engine.connect().execution_options(
        isolation_level="AUTOCOMMIT"
    ) as connection:
        connection.execute(text("ANALYZE"))


def main() -> None:
    """Measure, print the figures, and end with status 1 if a bound is missed."""
    found = figures()
    for figure in found:
        print(
            f"{figure.name}: {figure.value:.3g} {figure.unit}{'' if figure.kept else '   MISSED'}"
        )
    sys.exit(0 if all(figure.kept for figure in found) else 1)


if __name__ == "__main__":
    main()
