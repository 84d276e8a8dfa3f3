"""`python -m tests.load.sweep`: a sweep over ten thousand hot jobs, with its SLURM commands and RPC requests counted.

The chain, sshd and Postgres are real. The jobs are rows of the ledger and slots of the contract's storage that were made for
this, and squeue is a program that prints a list of that size as SLURM would.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery
from eth_utils.crypto import keccak
from sqlalchemy import text

from devgrid.grid import Grid
from supervisor_tasks.chain.rpc import Call, Rpc
from supervisor_tasks.job import ChainStatus, JobId
from supervisor_tasks.journey.scan import STREAM
from supervisor_tasks.ledger.sweeps import PROVIDER, Swept
from supervisor_tasks.queues import Queue
from supervisor_tasks.settings import Need, load
from supervisor_tasks.slurm.listing import FIELDS
from supervisor_tasks.wiring import Work, build

JOBS = 10_000
JOBS_SLOT = 1  # of the mapping in JobRepository's storage, behind that of AccessControl
AT_ONCE = 1000

SQUEUE = """#!/bin/sh
# Prints a recorded list with the mark that was asked for, and writes down that it was called.
echo called >> '{calls}'
exec sed "s/@MARK@/${{SQUEUE_FORMAT2##*|}}/g" '{listing}'
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One sweep: how long it took, by its own report, and what it asked."""

    seconds: float
    commands: int
    requests: int
    report: dict[str, Any]


def measure(grid: Grid, jobs: int = JOBS, sweeps: int = 3) -> list[Measured]:
    """Make the jobs and sweep some times. Of the fleet only the gRPC process is started, which sshd asks for keys."""
    job_ids = [JobId(f"0x{number:064x}") for number in range(1, jobs + 1)]
    customer, provider = grid.new_customer().address, grid.chain.account("provider").address
    grid.fleet.migrate()
    grid.fleet.start_callbacks()
    put_on_chain(grid, job_ids, customer, provider)
    calls = record_squeue(grid, job_ids, customer)
    settings = load(Need.SSH, environment=grid.environment | {"SLURM_SQUEUE_PATH": str(grid.folder / "squeue")})
    work = build(settings, {Queue.SLURM}, Celery(broker=grid.environment["BROKER_URL"]))
    try:
        put_into_ledger(work, jobs, customer, provider, grid.chain.block_number())
        return [one_sweep(work, calls) for _ in range(sweeps)]
    finally:
        work.close()


def one_sweep(work: Work, calls: Path) -> Measured:
    before = len(calls.read_text().splitlines()) if calls.exists() else 0
    with counted_requests() as requests:
        work.sweep("a measurement")
    swept: Swept = work._site.ledger.sweeps.last()[0]
    took_s = (swept.finished_at - swept.begun_at).total_seconds()
    return Measured(took_s, len(calls.read_text().splitlines()) - before, len(requests), swept.report)


@contextmanager
def counted_requests() -> Iterator[list[int]]:
    """The sizes of the HTTP requests that are made meanwhile."""
    post, sizes = Rpc._post, list[int]()

    def counted(self: Rpc, batch: Sequence[Call]) -> list[Any]:
        sizes.append(len(batch))
        return post(self, batch)

    Rpc._post = counted  # type: ignore
    try:
        yield sizes
    finally:
        Rpc._post = post  # type: ignore[method-assign]


def put_on_chain(grid: Grid, job_ids: Sequence[JobId], customer: str, provider: str) -> None:
    """Running jobs, written into the contract's storage: the id; status and customer in one word; the provider."""
    calls = []
    for job_id in job_ids:
        first = int.from_bytes(keccak(bytes.fromhex(job_id[2:]) + JOBS_SLOT.to_bytes(32, "big")), "big")
        status_and_customer = int(customer, 16) << 8 | ChainStatus.RUNNING
        for place, word in enumerate((int(job_id, 16), status_and_customer, int(provider, 16))):
            slot = (grid.chain.addresses.jobs, hex(first + place), f"0x{word:064x}")
            calls.append(("anvil_setStorageAt", slot))
    grid.chain.rpc.batch(calls, AT_ONCE)
    job = grid.chain.job(job_ids[-1])
    if (job.status, job.customer, job.provider) != (ChainStatus.RUNNING, customer, provider):
        raise RuntimeError(f"the contract keeps its jobs elsewhere: {job}")


def record_squeue(grid: Grid, job_ids: Sequence[JobId], customer: str) -> Path:
    """A squeue that lists the jobs; returns the file of its calls."""
    comment = f"supervisor {grid.environment['PUBLIC_ADDRESS']}"
    shown = {"UserName": customer, "State": "RUNNING", "TimeUsed": "1:00", "exit_code": "0", "Reason": "None"}
    shown |= {"SubmitTime": "1700000000", "Comment": comment, "STDOUT": "/nowhere"}
    listing, program, calls = (grid.folder / name for name in ("listing", "squeue", "squeue-calls"))
    with listing.open("w") as out:
        for number, job_id in enumerate(job_ids, start=1):
            own = shown | {"JobID": str(number), "Name": job_id}
            out.write("".join(f"{own.get(field, '')}|@MARK@" for field in FIELDS) + "\n")
    program.write_text(SQUEUE.format(calls=calls, listing=listing))
    program.chmod(0o755)
    return calls


def put_into_ledger(work: Work, jobs: int, customer: str, provider: str, head: int) -> None:
    """Running jobs that are being witnessed."""
    ledger = work._site.ledger
    ledger.sweeps.learn(PROVIDER, provider)
    where = {"cluster": ledger.cluster, "jobs": jobs, "customer": customer, "provider": provider}
    with ledger.engine.begin() as connection:
        ledger.set_cursor(connection, STREAM, head, "")
        connection.execute(
            text(
                """
                INSERT INTO jobs (cluster, job_id, customer, provider, claim_key, definition, time_limit_min, state,
                    chain_status, chain_block, chain_log_index, script, grid_logger_url, slurm_id, slurm_submit_s, top_ups,
                    cancel_requested, looks, message)
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
                SELECT cluster, job_id, 'witness', now() + interval '10 minutes' FROM jobs
                """
            )
        )
    with ledger.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))


def main() -> None:
    """Measure, tell, and end with status 1 when a bound is missed."""
    grid = Grid.start()
    try:
        found = measure(grid)
    finally:
        grid.stop()
    for sweep in found:
        print(
            f"{sweep.seconds:.2f} s, {sweep.commands} SLURM commands, {sweep.requests} RPC requests: {sweep.report['seconds']}"
        )
        print(f"    jobs {sweep.report['jobs']}, found {sweep.report['found']}, unseen {sweep.report['unseen']}")
    kept = all(sweep.seconds <= 5 and sweep.commands <= 3 and sweep.requests <= 20 for sweep in found)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
