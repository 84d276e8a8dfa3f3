"""Bursts: many jobs become claimable at once. Compares the fleet with sbatch alone."""

import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import psutil

from devgrid.chain.model import Account, ChainPrices, JobDefinition
from devgrid.grid import CUSTOMERS_CREDITS, Grid, definition_of
from devgrid.hand_in import CREDIT
from devgrid.processes import wait_until
from devgrid.services import script_store
from devgrid.services.workflow import Resources
from supervisor_tasks.jobs.model import ChainStatus
from tests.load import raw_sbatch
from tests.load.registration import READY
from tests.load.usage import OWN, SECOND_WORKER, Meter, Usage, process_of
from tests.support.grid_assertions import parked, rows, slurm_of
from tests.support.load_figures import Figure, show

BURST = 200
LARGE_BURST, LARGE_BURST_CUSTOMERS = 1000, 10
LOGINS = 200
SHORT_JOB = "#!/bin/bash\nsleep 1\n"
WAITING_JOB = "#!/bin/bash\ntrue\n"
MINUTES = 10
ENOUGH_WAITING = "4000"  # jobs: CLAIM_MAX_WAITING must not limit a burst
AT_ONCE = 20  # customers that submit jobs at the same time
FIRST_CUSTOMERS, FIRST_JOBS = 10, 10  # jobs each
MIN_CORES = 4  # with fewer, two workers cannot have a core each beside all else


def short_jobs(grid: Grid) -> list[Figure]:
    """Measure jobs that run for a second: their times, and the CPU, messages and
    transactions of their whole journey.
    """
    (customer,) = new_customers(grid, 1)
    job_ids = request(grid, [customer], BURST, definition(grid, SHORT_JOB))
    with Meter(grid) as meter:
        before = meter.read()
        began_s = make_claimable(grid, job_ids)
        wait_until(
            lambda: in_state(meter, job_ids, "SETTLED") == BURST,
            f"{BURST} jobs to be settled",
            180.0,
            0.5,
        )
        time.sleep(1.5)  # Postgres updates its counters a second late
        used = meter.read().since(before)
    check_all_finished(grid, job_ids)
    show(f"    CPU in ms a job: {used.describe(BURST)}")
    submitted_s = seconds(
        grid,
        "SELECT max(at) FROM events WHERE name = 'Submitted' AND job_id = ANY(:ids)",
        job_ids,
    )
    ended_s = seconds(
        grid,
        "SELECT max(received_at) FROM callbacks WHERE status = 7 AND job_id = ANY(:ids)",
        job_ids,
    )
    settled_s = seconds(
        grid,
        "SELECT max(at) FROM events WHERE state = 'SETTLED' AND job_id = ANY(:ids)",
        job_ids,
    )
    return [
        Figure(
            f"burst of {BURST}: all submitted after", submitted_s - began_s, "s", 5.0
        ),
        Figure(
            f"burst of {BURST}: all settled after the last end",
            settled_s - ended_s,
            "s",
            10.0,
        ),
        *counts(used),
    ]


def one_job(grid: Grid) -> None:
    """Carry one job to its end. The processes of the fleet then have all imports and
    connections that a job needs. These take seconds of CPU at the first job, and are no
    part of the cost of a job.
    """
    (customer,) = new_customers(grid, 1)
    job_ids = request(grid, [customer], 1, definition(grid, SHORT_JOB))
    with Meter(grid) as meter:
        make_claimable(grid, job_ids)
        wait_until(
            lambda: in_state(meter, job_ids, "SETTLED") == 1,
            "the first job to be settled",
            180.0,
            0.5,
        )


def counts(used: Usage) -> list[Figure]:
    """The cost of a job in that burst."""
    name = f"burst of {BURST}"
    return [
        Figure(
            f"{name}: CPU of our own processes",
            1000 * sum(used.cpu_s.values()) / BURST,
            "ms a job",
            25.0,
        ),
        Figure(f"{name}: messages to the broker", used.messages / BURST, "a job", 1.0),
        Figure(
            f"{name}: transactions of Postgres", used.transactions / BURST, "a job", 8.0
        ),
    ]


def waiting_jobs(grid: Grid) -> list[Figure]:
    """Measure many jobs of a few customers. No job runs."""
    each = LARGE_BURST // LARGE_BURST_CUSTOMERS
    raw, ours = beside_raw(grid, LARGE_BURST_CUSTOMERS, each)
    name = f"burst of {LARGE_BURST} of {LARGE_BURST_CUSTOMERS} customers"
    return [
        Figure(f"{name}: sbatch alone", raw, "a second", 0.0, at_least=True),
        Figure(
            f"{name}: claimed to id in the ledger",
            ours,
            "a second",
            80.0,
            at_least=True,
        ),
        Figure(f"{name}: of sbatch alone", 100 * ours / raw, "%", 45.0, at_least=True),
    ]


def many_logins(grid: Grid) -> list[Figure]:
    """Measure one job of each of many customers: each needs a login of its own."""
    raw, ours = beside_raw(grid, LOGINS, 1)
    name = f"burst of {LOGINS} of {LOGINS} customers"
    return [
        Figure(f"{name}: sbatch alone", raw, "a second", 0.0, at_least=True),
        Figure(
            f"{name}: claimed to id in the ledger", ours, "a second", 0.0, at_least=True
        ),
        Figure(f"{name}: of sbatch alone", 100 * ours / raw, "%", 60.0, at_least=True),
    ]


def two_workers(grid: Grid) -> list[Figure]:
    """Compare one worker with two in the same burst: by their rates if each has a core
    of its own, else by the CPU a job.
    """
    apart = (psutil.cpu_count() or 1) >= MIN_CORES
    with partition_busy(grid):
        alone, alone_cpu_s = _of_workers(grid, ["worker"], apart)
        start_second_worker(grid)
        try:
            # as the first worker, it has carried jobs before it is measured
            submissions(grid, new_customers(grid, FIRST_CUSTOMERS), FIRST_JOBS)
            both, both_cpu_s = _of_workers(grid, ["worker", SECOND_WORKER], apart)
        finally:
            grid.processes.stop(grid.processes.find(SECOND_WORKER))
    times = Figure(
        "two workers: submissions beside those of one",
        both / alone,
        "times",
        1.5 if apart else 0.0,
        at_least=True,
    )
    if apart:
        return [times]
    # Twice the cores at 4/3 of the CPU a job submit 1.5 times as many.
    return [
        times,
        Figure(
            "two workers: CPU of the workers a job beside that of one",
            both_cpu_s / alone_cpu_s,
            "times",
            4 / 3,
        ),
    ]


def _of_workers(grid: Grid, workers: Sequence[str], apart: bool) -> tuple[float, float]:
    """Submissions a second, and the seconds of CPU that the workers took. If `apart`,
    each worker has a core of its own.
    """
    for core, name in enumerate(workers if apart else ()):
        process_of(grid, name).cpu_affinity([core])
    customers = new_customers(grid, LARGE_BURST_CUSTOMERS)
    rate, used = submissions(
        grid, customers, LARGE_BURST // LARGE_BURST_CUSTOMERS, workers
    )
    return rate, sum(used.cpu_s.values())


def start_second_worker(grid: Grid) -> None:
    """Start a second worker for the slurm queue, as a site adds workers. Returns when
    it is ready: its start is no part of a measurement.
    """
    grid.fleet.start_worker(
        SECOND_WORKER, "--queues", f"{grid.environment['CLUSTER_NAME']}.slurm"
    )
    log = grid.folder / "log" / f"{SECOND_WORKER}.log"
    wait_until(
        lambda: READY in log.read_text(), "the second worker to be ready", 60.0, 0.1
    )


def beside_raw(grid: Grid, customers: int, jobs_each: int) -> tuple[float, float]:
    """Submissions a second by sbatch alone, and then by the fleet, on the same grid,
    while no job can run.
    """
    what = definition(grid, WAITING_JOB)
    with partition_busy(grid):
        with paused(grid, "worker", "beat"):
            took_s, slurm_ids = raw_sbatch.submit(
                grid, new_customers(grid, customers), jobs_each, what, WAITING_JOB
            )
            cancel(grid, slurm_ids)
        raw = len(slurm_ids) / took_s
        show(f"    sbatch alone: {raw:.1f} a second")
        return raw, submissions(grid, new_customers(grid, customers), jobs_each)[0]


def submissions(
    grid: Grid, customers: Sequence[Account], jobs_each: int, names: Sequence[str] = OWN
) -> tuple[float, Usage]:
    """Submissions a second, from the first claim in the ledger to the last SLURM id,
    and the usage of the processes until then. Cancels the jobs afterwards, and waits
    until all are settled.
    """
    job_ids = request(grid, customers, jobs_each, definition(grid, WAITING_JOB))
    with Meter(grid, names) as meter:
        before = meter.read()
        make_claimable(grid, job_ids)
        wait_until(
            lambda: submitted(meter, job_ids) == len(job_ids),
            f"{len(job_ids)} jobs in SLURM",
            600.0,
            0.5,
        )
        used = meter.read().since(before)
        show(f"    CPU in ms a job until then: {used.describe(len(job_ids))}")
        claimed_s = seconds(
            grid,
            "SELECT min(at) FROM events WHERE name = 'Claimed' AND job_id = ANY(:ids)",
            job_ids,
        )
        last_s = seconds(
            grid,
            "SELECT max(at) FROM events WHERE name = 'Submitted' AND job_id = ANY(:ids)",
            job_ids,
        )
        query = "SELECT slurm_id FROM jobs WHERE job_id = ANY(:ids)"
        cancel(grid, [str(row.slurm_id) for row in rows(grid, query, ids=job_ids)])
        wait_until(
            lambda: in_state(meter, job_ids, "SETTLED") == len(job_ids),
            "the cancelled jobs to settle",
            600.0,
            1.0,
        )
    rate = len(job_ids) / (last_s - claimed_s)
    show(f"    the fleet: {rate:.1f} a second")
    return rate, used


# --- a grid ---------------------------------------------------------------------------


@contextmanager
def partition_busy(grid: Grid) -> Iterator[None]:
    """Inside this, one job has all nodes, so that no other job runs."""
    slurm = slurm_of(grid)
    nodes = f"--nodes={len(slurm.layout.node_ports)}"
    options = (
        "--parsable",
        "--exclusive",
        nodes,
        "--output=/dev/null",
        "--comment=bench",
        "--wrap=sleep 36000",
    )
    printed = slurm.run("sbatch", "--partition=main", *options).stdout
    (slurm_id,) = printed.split()
    try:
        is_running = partial(
            slurm.run, "squeue", "--noheader", "--states=running", f"--jobs={slurm_id}"
        )
        wait_until(
            lambda: bool(is_running().stdout.strip()),
            "the partition to be busy",
            60.0,
            0.2,
        )
        yield
    finally:
        cancel(grid, [slurm_id])


@contextmanager
def paused(grid: Grid, *names: str) -> Iterator[None]:
    """Inside this, these processes are stopped (SIGSTOP)."""
    stopped = [grid.processes.find(name) for name in names]
    for one in stopped:
        grid.processes.kill(one, signal.SIGSTOP, wait=False)
    try:
        yield
    finally:
        for one in stopped:
            grid.processes.kill(one, signal.SIGCONT, wait=False)


def cancel(grid: Grid, slurm_ids: Sequence[str]) -> None:
    """Cancel these jobs. Returns when none of them is left in the queue."""
    slurm, wanted = slurm_of(grid), set(slurm_ids)

    def left() -> set[str]:
        return wanted & set(
            slurm.run("squeue", "--noheader", "--format=%A").stdout.split()
        )

    slurm.run("scancel", *slurm_ids)
    wait_until(lambda: not left(), f"{len(slurm_ids)} jobs to be cancelled", 120.0, 0.5)


def new_customers(grid: Grid, number: int) -> list[Account]:
    """Create customers with credits and Linux users."""
    customers = [grid.chain.new_account() for _ in range(number)]
    credit = CUSTOMERS_CREDITS * CREDIT
    calls = [("Credit", "mint", (customer.address, credit)) for customer in customers]
    grid.chain.send_many(grid.chain.account("admin"), calls)
    for customer in customers:
        grid.users.add(customer.address)
    return customers


def definition(grid: Grid, script: str) -> JobDefinition:
    """The definition of a small job that runs this script."""
    return definition_of(
        script_store.store_script(grid.folder / "scripts", script),
        Resources(memPerCpu=100),
    )


def request(
    grid: Grid, customers: Sequence[Account], jobs_each: int, what: JobDefinition
) -> list[str]:
    """Request the jobs of each customer on chain. Returns their ids. No provider has
    them yet.
    """
    locked_wei = MINUTES * ChainPrices().of(what)

    def hand_in(customer: Account) -> list[str]:
        return grid.chain.customers.request_jobs(customer, what, jobs_each, locked_wei)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [job_id for many in pool.map(hand_in, customers) for job_id in many]


def make_claimable(grid: Grid, job_ids: Sequence[str]) -> float:
    """Give all jobs to the provider while the fleet is stopped, and let it go on.
    Returns the time of that (Unix time).
    """
    with paused(grid, "beat", "worker"):
        grid.chain.admin.meta_schedule(job_ids, grid.chain.account("provider").address)
        began_s = time.time()
    return began_s


def in_state(meter: Meter, job_ids: Sequence[str], state: str) -> int:
    """How many of the jobs are in that state."""
    query = "SELECT count(*) FROM jobs WHERE state = :state AND job_id = ANY(:ids)"
    return int(meter.ask(query, ids=list(job_ids), state=state))


def submitted(meter: Meter, job_ids: Sequence[str]) -> int:
    """How many of the jobs have a SLURM id."""
    return int(
        meter.ask(
            "SELECT count(slurm_id) FROM jobs WHERE job_id = ANY(:ids)",
            ids=list(job_ids),
        )
    )


def check_all_finished(grid: Grid, job_ids: Sequence[str]) -> None:
    """Raises RuntimeError unless all jobs are FINISHED on chain and nothing is
    parked.
    """
    wrong = [
        job.job_id
        for job in grid.chain.jobs(job_ids)
        if job.status is not ChainStatus.FINISHED
    ]
    if wrong or parked(grid):
        raise RuntimeError(f"not FINISHED on chain: {wrong}; parked: {parked(grid)}")


def seconds(grid: Grid, query: str, job_ids: Sequence[str]) -> float:
    """The time that a query of the ledger selects, as Unix time."""
    epoch = f"SELECT EXTRACT(EPOCH FROM ({query}))::float8 AS s"  # noqa: S608  a query of this module
    found: float = rows(grid, epoch, ids=list(job_ids))[0].s
    return found
