"""Bursts: many jobs become claimable at once, and what the fleet makes of them beside sbatch alone."""

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
from tests.load.figures import Figure, tell
from tests.load.registration import READY
from tests.load.usage import OWN, SECOND_WORKER, Meter, Usage, process_of
from tests.support.watching import parked, rows, slurm_of

BURST = 200
LARGE_BURST, LARGE_BURST_CUSTOMERS = 1000, 10
LOGINS = 200
SHORT_JOB = "#!/bin/bash\nsleep 1\n"
WAITING_JOB = "#!/bin/bash\ntrue\n"
MINUTES = 10
ENOUGH_WAITING = "4000"  # jobs: CLAIM_MAX_WAITING is no part of what a burst measures
AT_ONCE = 20  # customers that hand their jobs in
FEW_CORES = 4  # fewer, and two workers cannot have one each beside all else


def short_jobs(grid: Grid) -> list[Figure]:
    """Jobs of one second that run, with the CPU, the messages and the transactions of their whole journey."""
    (customer,) = new_customers(grid, 1)
    job_ids = request(grid, [customer], BURST, definition(grid, SHORT_JOB))
    with Meter(grid) as meter:
        before = meter.read()
        began_s = make_claimable(grid, job_ids)
        wait_until(lambda: in_state(meter, job_ids, "SETTLED") == BURST, f"{BURST} jobs to be settled", 180.0, 0.5)
        time.sleep(1.5)  # what Postgres counts comes a second late
        used = meter.read().since(before)
    make_sure_of(grid, job_ids)
    tell(f"    CPU in ms a job: {used.told(BURST)}")
    submitted_s = seconds(grid, "SELECT max(at) FROM events WHERE name = 'Submitted' AND job_id = ANY(:ids)", job_ids)
    ended_s = seconds(grid, "SELECT max(received_at) FROM callbacks WHERE status = 7 AND job_id = ANY(:ids)", job_ids)
    settled_s = seconds(grid, "SELECT max(at) FROM events WHERE state = 'SETTLED' AND job_id = ANY(:ids)", job_ids)
    return [
        Figure(f"burst of {BURST}: all submitted after", submitted_s - began_s, "s", 5.0),
        Figure(f"burst of {BURST}: all settled after the last end", settled_s - ended_s, "s", 10.0),
        *counts(used),
    ]


def one_job(grid: Grid) -> None:
    """Carry one job to its end. The processes of the fleet have then imported and connected all that a job needs, which
    costs seconds of CPU at their start and is no part of what a job costs.
    """
    (customer,) = new_customers(grid, 1)
    job_ids = request(grid, [customer], 1, definition(grid, SHORT_JOB))
    with Meter(grid) as meter:
        make_claimable(grid, job_ids)
        wait_until(lambda: in_state(meter, job_ids, "SETTLED") == 1, "the first job to be settled", 180.0, 0.5)


def counts(used: Usage) -> list[Figure]:
    """What a job of that burst costs."""
    name = f"burst of {BURST}"
    return [
        Figure(f"{name}: CPU of our own processes", 1000 * sum(used.cpu_s.values()) / BURST, "ms a job", 25.0),
        Figure(f"{name}: messages to the broker", used.messages / BURST, "a job", 1.0),
        Figure(f"{name}: transactions of Postgres", used.transactions / BURST, "a job", 8.0),
    ]


def waiting_jobs(grid: Grid) -> list[Figure]:
    """Many jobs of a few customers; no job runs."""
    each = LARGE_BURST // LARGE_BURST_CUSTOMERS
    raw, ours = beside_raw(grid, LARGE_BURST_CUSTOMERS, each)
    name = f"burst of {LARGE_BURST} of {LARGE_BURST_CUSTOMERS} customers"
    return [
        Figure(f"{name}: sbatch alone", raw, "a second", 0.0, at_least=True),
        Figure(f"{name}: claimed to id in the ledger", ours, "a second", 80.0, at_least=True),
        Figure(f"{name}: of sbatch alone", 100 * ours / raw, "%", 45.0, at_least=True),
    ]


def many_logins(grid: Grid) -> list[Figure]:
    """A job each of many customers: each needs a login of its own."""
    raw, ours = beside_raw(grid, LOGINS, 1)
    name = f"burst of {LOGINS} of {LOGINS} customers"
    return [
        Figure(f"{name}: sbatch alone", raw, "a second", 0.0, at_least=True),
        Figure(f"{name}: claimed to id in the ledger", ours, "a second", 0.0, at_least=True),
        Figure(f"{name}: of sbatch alone", 100 * ours / raw, "%", 60.0, at_least=True),
    ]


def two_workers(grid: Grid) -> list[Figure]:
    """The same burst with one worker and with two: by their rates where each has a core of its own, else by the CPU a job."""
    apart = (psutil.cpu_count() or 1) >= FEW_CORES
    with partition_busy(grid):
        alone, alone_cpu_s = _of_workers(grid, ["worker"], apart)
        start_second_worker(grid)
        try:
            both, both_cpu_s = _of_workers(grid, ["worker", SECOND_WORKER], apart)
        finally:
            grid.processes.stop(grid.processes.find(SECOND_WORKER))
    if apart:
        return [Figure("two workers: submissions beside those of one", both / alone, "times", 1.5, at_least=True)]
    # Twice the cores at 4/3 of the CPU a job submit 1.5 times as many.
    return [
        Figure("two workers: CPU of the workers a job beside that of one", both_cpu_s / alone_cpu_s, "times", 4 / 3)
    ]


def _of_workers(grid: Grid, workers: Sequence[str], apart: bool) -> tuple[float, float]:
    """Submissions a second, and the seconds of CPU that the workers took. `apart`: each on a core of its own."""
    for core, name in enumerate(workers if apart else ()):
        process_of(grid, name).cpu_affinity([core])
    customers = new_customers(grid, LARGE_BURST_CUSTOMERS)
    rate, used = submissions(grid, customers, LARGE_BURST // LARGE_BURST_CUSTOMERS, workers)
    return rate, sum(used.cpu_s.values())


def start_second_worker(grid: Grid) -> None:
    """Beside the one that is there, for the slurm queue, as a site adds workers; returns when it works: its start is no
    part of a measurement.
    """
    grid.fleet.start_worker(SECOND_WORKER, "--queues", f"{grid.environment['CLUSTER_NAME']}.slurm")
    log = grid.folder / "log" / f"{SECOND_WORKER}.log"
    wait_until(lambda: READY in log.read_text(), "the second worker to be ready", 60.0, 0.1)


def beside_raw(grid: Grid, customers: int, jobs_each: int) -> tuple[float, float]:
    """Submissions a second by sbatch alone, and by the fleet, on one grid and one after the other, while none can run."""
    what = definition(grid, WAITING_JOB)
    with partition_busy(grid):
        with paused(grid, "worker", "beat"):
            took_s, slurm_ids = raw_sbatch.submit(grid, new_customers(grid, customers), jobs_each, what, WAITING_JOB)
            cancel(grid, slurm_ids)
        raw = len(slurm_ids) / took_s
        tell(f"    sbatch alone: {raw:.1f} a second")
        return raw, submissions(grid, new_customers(grid, customers), jobs_each)[0]


def submissions(
    grid: Grid, customers: Sequence[Account], jobs_each: int, names: Sequence[str] = OWN
) -> tuple[float, Usage]:
    """How many a second, from the first claim in the ledger to the last SLURM id, and what these processes used until then.
    Cancels the jobs afterwards, and waits until all are settled.
    """
    job_ids = request(grid, customers, jobs_each, definition(grid, WAITING_JOB))
    with Meter(grid, names) as meter:
        before = meter.read()
        make_claimable(grid, job_ids)
        wait_until(lambda: submitted(meter, job_ids) == len(job_ids), f"{len(job_ids)} jobs in SLURM", 600.0, 0.5)
        used = meter.read().since(before)
        tell(f"    CPU in ms a job until then: {used.told(len(job_ids))}")
        claimed_s = seconds(grid, "SELECT min(at) FROM events WHERE name = 'Claimed' AND job_id = ANY(:ids)", job_ids)
        last_s = seconds(grid, "SELECT max(at) FROM events WHERE name = 'Submitted' AND job_id = ANY(:ids)", job_ids)
        query = "SELECT slurm_id FROM jobs WHERE job_id = ANY(:ids)"
        cancel(grid, [str(row.slurm_id) for row in rows(grid, query, ids=job_ids)])
        wait_until(
            lambda: in_state(meter, job_ids, "SETTLED") == len(job_ids), "the cancelled jobs to settle", 600.0, 1.0
        )
    rate = len(job_ids) / (last_s - claimed_s)
    tell(f"    the fleet: {rate:.1f} a second")
    return rate, used


# --- a grid -----------------------------------------------------------------------------------------------------------


@contextmanager
def partition_busy(grid: Grid) -> Iterator[None]:
    """No job runs meanwhile but one, which has all nodes for itself."""
    slurm = slurm_of(grid)
    nodes = f"--nodes={len(slurm.layout.node_ports)}"
    sleeps = ("--parsable", "--exclusive", nodes, "--output=/dev/null", "--comment=bench", "--wrap=sleep 36000")
    said = slurm.run("sbatch", "--partition=main", *sleeps).stdout
    (slurm_id,) = said.split()
    try:
        is_running = partial(slurm.run, "squeue", "--noheader", "--states=running", f"--jobs={slurm_id}")
        wait_until(lambda: bool(is_running().stdout.strip()), "the partition to be busy", 60.0, 0.2)
        yield
    finally:
        cancel(grid, [slurm_id])


@contextmanager
def paused(grid: Grid, *names: str) -> Iterator[None]:
    """These processes stand still meanwhile."""
    stopped = [grid.processes.find(name) for name in names]
    for one in stopped:
        grid.processes.kill(one, signal.SIGSTOP, wait=False)
    try:
        yield
    finally:
        for one in stopped:
            grid.processes.kill(one, signal.SIGCONT, wait=False)


def cancel(grid: Grid, slurm_ids: Sequence[str]) -> None:
    """Cancel these jobs, and no others; returns when none of them is left in the queue."""
    slurm, wanted = slurm_of(grid), set(slurm_ids)

    def left() -> set[str]:
        return wanted & set(slurm.run("squeue", "--noheader", "--format=%A").stdout.split())

    slurm.run("scancel", *slurm_ids)
    wait_until(lambda: not left(), f"{len(slurm_ids)} jobs to be cancelled", 120.0, 0.5)


def new_customers(grid: Grid, number: int) -> list[Account]:
    """Customers with credits and Linux users, made at once."""
    customers = [grid.chain.new_account() for _ in range(number)]
    credit = CUSTOMERS_CREDITS * CREDIT
    calls = [("Credit", "mint", (customer.address, credit)) for customer in customers]
    grid.chain.send_many(grid.chain.account("admin"), calls)
    for customer in customers:
        grid.users.add(customer.address)
    return customers


def definition(grid: Grid, script: str) -> JobDefinition:
    """Of a job that runs this script, and wants little."""
    return definition_of(script_store.store_script(grid.folder / "scripts", script), Resources(memPerCpu=100))


def request(grid: Grid, customers: Sequence[Account], jobs_each: int, what: JobDefinition) -> list[str]:
    """So many jobs of each customer on chain, given to no provider yet; their ids."""
    locked_wei = MINUTES * ChainPrices().of(what)

    def hand_in(customer: Account) -> list[str]:
        return grid.chain.customers.request_jobs(customer, what, jobs_each, locked_wei)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [job_id for many in pool.map(hand_in, customers) for job_id in many]


def make_claimable(grid: Grid, job_ids: Sequence[str]) -> float:
    """Give all jobs to the provider while the fleet stands still, and let it go on; returns when that was (Unix time)."""
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
    return int(meter.ask("SELECT count(slurm_id) FROM jobs WHERE job_id = ANY(:ids)", ids=list(job_ids)))


def make_sure_of(grid: Grid, job_ids: Sequence[str]) -> None:
    """Raises RuntimeError unless all jobs are FINISHED on chain and nothing is parked."""
    wrong = [job.job_id for job in grid.chain.jobs(job_ids) if job.status is not ChainStatus.FINISHED]
    if wrong or parked(grid):
        raise RuntimeError(f"not FINISHED on chain: {wrong}; parked: {parked(grid)}")


def seconds(grid: Grid, query: str, job_ids: Sequence[str]) -> float:
    """A moment of the ledger as Unix time."""
    epoch = f"SELECT EXTRACT(EPOCH FROM ({query}))::float8 AS s"  # noqa: S608  a query of this module
    found: float = rows(grid, epoch, ids=list(job_ids))[0].s
    return found
