"""`make bench`: what the project promises, measured on this machine with everything on it.

Prints a table and one JSON object. The figures in docs/performance.json are shown beside it; `--record` writes them anew.
`--only "redis stopped"` measures what has these words in its name.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import grpc
import psutil
from sqlalchemy import text

from devgrid import scripts
from devgrid.chain import Prices
from devgrid.grid import Grid, definition_of
from devgrid.process import wait_until
from devgrid.workflow import Resources
from protos.supervisor.v1alpha1.supervisor_pb2 import JobStatus, SetJobStatusRequest
from protos.supervisor.v1alpha1.supervisor_pb2_grpc import JobAPIStub
from supervisor_tasks.job import ChainStatus
from tests.load import parsing, specs, sweep
from tests.load.figures import Figure, tell
from tests.load.record import by_name, recorded, write
from tests.load.recovery import recovery
from tests.load.registration import price_on_chain
from tests.watching import ledger, parked, rows, wait_for_end

BURST = 200
SINGLE_JOBS = 30
CALLERS = 8
CALLS = 3000
IDLE_S = 30.0
OTHERS = {"parsers of benchmarks": parsing.figures, "sweep and witness": sweep.figures, "specs": specs.figures}
FLEET = ("worker", "beat", "callbacks", "flower")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the figures to docs/performance.json and .md")
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="what has this in its name: burst, sweep, redis stopped"
    )
    options = parser.parse_args()
    if options.record and options.only:
        parser.error("--record takes all figures")
    figures = [*fleet_figures(options.only), *other_figures(options.only), *recovery(options.only)]
    report(figures, options.record)
    sys.exit(0 if figures and all(figure.kept for figure in figures) else 1)


def fleet_figures(only: str) -> list[Figure]:
    """What is measured on a grid with its fleet, as far as it has the words in its name."""
    figures: list[Figure] = []
    for title, block_time_s, measures in (
        ("1 s blocks", 1.0, (idle_cpu, burst, completion, memory, callbacks, price_on_chain)),
        ("automine", None, (claim_latency,)),
    ):
        chosen = [measure for measure in measures if only in name_of(measure)]
        if not chosen:
            continue
        tell(f"a grid with {title}")
        grid = Grid.start(block_time_s=block_time_s)
        try:
            grid.fleet.start()
            for measure in chosen:
                tell(f"measuring: {name_of(measure)}")
                found = measure(grid)
                figures += found
                for figure in found:
                    tell(f"    {figure.name}: {figure.value:.3g} {figure.unit}")
        finally:
            grid.stop()
    return figures


def other_figures(only: str) -> list[Figure]:
    """What is measured without a fleet."""
    found: list[Figure] = []
    for name, figures in OTHERS.items():
        if only in name:
            tell(f"measuring: {name}")
            found += figures()
    return found


def name_of(measure: Callable[[Grid], list[Figure]]) -> str:
    return measure.__name__.replace("_", " ")


def idle_cpu(grid: Grid) -> list[Figure]:
    """CPU of the whole fleet while there is nothing to do."""
    processes = [grid.processes.find(name).process() for name in FLEET]
    time.sleep(10.0)  # let it settle down
    before = sum(cpu_s(process) for process in processes)
    time.sleep(IDLE_S)  # the measurement itself
    used_s = sum(cpu_s(process) for process in processes) - before
    return [Figure("idle CPU of the fleet", 100 * used_s / IDLE_S, "% of one core", 5.0)]


def burst(grid: Grid) -> list[Figure]:
    """Many one-second jobs are queued on chain when the clock that polls it goes on."""
    customer = grid.new_customer()
    grid.processes.stop(grid.processes.find("metascheduler"))
    name = scripts.store_script(grid.folder / "scripts", "#!/bin/bash\nsleep 1\n")
    definition = definition_of(name, Resources(memPerCpu=100))
    job_ids = grid.chain.request_jobs(customer, definition, BURST, 10 * Prices().of(definition))
    beat = grid.processes.find("beat")
    grid.processes.kill(beat, signal.SIGSTOP, wait=False)  # nothing is claimed before all are queued
    grid.chain.meta_schedule(job_ids, grid.chain.account("provider").address)
    began_s = time.time()
    grid.processes.kill(beat, signal.SIGCONT, wait=False)
    wait_until(lambda: settled(grid, job_ids), f"{BURST} jobs to be settled", 180.0, every_s=0.5)
    if broken := parked(grid):
        raise RuntimeError(f"parked: {broken}")
    submitted_s = seconds(grid, "SELECT max(at) FROM events WHERE name = 'Submitted'")
    ended_s = seconds(grid, "SELECT max(received_at) FROM callbacks WHERE status = 7")
    settled_s = seconds(grid, "SELECT max(at) FROM events WHERE state = 'SETTLED'")
    return [
        Figure(f"burst of {BURST}: all submitted after", submitted_s - began_s, "s", 10.0),
        Figure(f"burst of {BURST}: all settled after the last end", settled_s - ended_s, "s", 10.0),
    ]


def completion(grid: Grid) -> list[Figure]:
    """From a completion callback in the inbox to its FINISHED seen mined, one job at a time."""
    customer = grid.new_customer()
    for _ in range(SINGLE_JOBS):
        job_id = grid.submit_script(customer, "#!/bin/bash\nsleep 0.5\n")
        schedule(grid, job_id)
        wait_for_end(grid, job_id)
        wait_until(lambda one=job_id: settled(grid, [one]), "the ledger to know", 10.0)  # type: ignore[misc]
    query = """
        SELECT EXTRACT(EPOCH FROM t.done_at - c.received_at)::float8 AS s FROM callbacks c
        JOIN jobs j ON j.job_id = c.job_id JOIN transactions t ON t.job_id = c.job_id
        WHERE c.status = 7 AND t.purpose = 'report FINISHED' AND j.customer = :customer"""
    waits = [row.s for row in rows(grid, query, customer=customer.address)]
    return percentiles("callback to FINISHED mined", waits, 2.0, 3.0)


def claim_latency(grid: Grid) -> list[Figure]:
    """From metaSchedule being sent to sbatch being called, one job at a time on an idle grid."""
    customer = grid.new_customer()
    grid.processes.stop(grid.processes.find("metascheduler"))
    warm = grid.submit_script(customer, "#!/bin/bash\ntrue\n")
    schedule(grid, warm)
    wait_for_end(grid, warm)
    waits = []
    for number in range(SINGLE_JOBS):
        job_id = grid.submit_script(customer, "#!/bin/bash\ntrue\n")
        time.sleep(0.037 * number % 0.5)  # not in step with the clock that polls
        began_s = time.time()
        schedule(grid, job_id)
        wait_for_end(grid, job_id)
        query = f"SELECT at FROM events WHERE name = 'SubmitStarted' AND job_id = '{job_id}'"  # noqa: S608
        waits.append(seconds(grid, query) - began_s)
    return percentiles("claimable to sbatch", waits, 1.0, 2.0)


def memory(grid: Grid) -> list[Figure]:
    """Resident memory, after the work."""
    bounds = {"worker": 300.0, "callbacks": 150.0, "beat": 120.0}
    found = {name: grid.processes.find(name).process() for name in bounds}
    return [
        Figure(f"resident memory of {name}", process.memory_info().rss / 2**20 if process else 0.0, "MB", bounds[name])
        for name, process in found.items()
    ]


KNOW = """
INSERT INTO jobs (cluster, job_id, slurm_id, state, customer, provider, claim_key, definition, time_limit_min, chain_status,
    chain_block, chain_log_index, grid_logger_url, top_ups, cancel_requested, looks, message)
SELECT :cluster, '0x' || lpad(to_hex(caller), 32, '0') || lpad(to_hex(number), 32, '0'), 1, 'SETTLED', '', '', '', '{}', 1, 5,
    1, 1, '', '[]', false, 0, ''
FROM generate_series(0, :callers - 1) AS caller, generate_series(0, :calls / :callers - 1) AS number
"""


def callbacks(grid: Grid) -> list[Figure]:
    """Durable acknowledgements, with several callers at once."""
    authority = (grid.folder / "tls" / "ca.pem").read_bytes()
    address = grid.environment["PUBLIC_ADDRESS"]
    with ledger(grid) as engine, engine.begin() as connection:  # of jobs that it does not know, the inbox keeps a few
        connection.execute(
            text(KNOW), {"cluster": grid.environment["CLUSTER_NAME"], "callers": CALLERS, "calls": CALLS}
        )

    def call_many(caller: int) -> list[float]:
        waits = []
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(authority)) as channel:
            stub = JobAPIStub(channel)
            for number in range(CALLS // CALLERS):
                name = f"0x{caller:032x}{number:032x}"
                request = SetJobStatusRequest(name=name, id=1, duration=1, status=JobStatus.JOB_STATUS_FINISHED)
                began_s = time.perf_counter()
                stub.SetJobStatus(request, timeout=30)
                waits.append(time.perf_counter() - began_s)
        return waits

    began_s = time.perf_counter()
    with ThreadPoolExecutor(CALLERS) as pool:
        waits = [wait for many in pool.map(call_many, range(CALLERS)) for wait in many]
    rate = len(waits) / (time.perf_counter() - began_s)
    p99_ms = 1000 * statistics.quantiles(waits, n=100)[98]
    return [
        Figure(f"callbacks stored and acknowledged, {CALLERS} callers", rate, "a second", 300.0, at_least=True),
        Figure(f"callback acknowledged, {CALLERS} callers, p99", p99_ms, "ms", 50.0),
    ]


def percentiles(name: str, waits_s: list[float], p50_bound: float, p95_bound: float) -> list[Figure]:
    p95 = statistics.quantiles(waits_s, n=20, method="inclusive")[18]
    return [
        Figure(f"{name}, p50 of {len(waits_s)}", statistics.median(waits_s), "s", p50_bound),
        Figure(f"{name}, p95 of {len(waits_s)}", p95, "s", p95_bound),
    ]


def schedule(grid: Grid, job_id: str) -> None:
    grid.chain.meta_schedule([job_id], grid.chain.account("provider").address)


def settled(grid: Grid, job_ids: list[str]) -> bool:
    query = "SELECT count(*) AS n FROM jobs WHERE state = 'SETTLED' AND job_id = ANY(:ids)"
    done: bool = rows(grid, query, ids=job_ids)[0].n == len(job_ids)
    if done:
        wrong = [job_id for job_id in job_ids if grid.chain.job(job_id).status is not ChainStatus.FINISHED]
        if wrong:
            raise RuntimeError(f"not FINISHED on chain: {wrong}")
    return done


def seconds(grid: Grid, query: str) -> float:
    found: float = rows(grid, f"SELECT EXTRACT(EPOCH FROM ({query}))::float8 AS s")[0].s  # noqa: S608
    return found


def cpu_s(process: psutil.Process | None) -> float:
    if process is None:
        raise RuntimeError("a process of the fleet has ended")
    times = process.cpu_times()
    return float(times.user + times.system)


def report(figures: list[Figure], record: bool) -> None:
    machine = {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "processor": processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
    before = by_name(recorded())
    print(f"\n{'':<52}{'measured':>10}{'recorded':>10}{'bound':>10}")
    for figure in figures:
        old = f"{before[figure.name].value:.3g}" if figure.name in before else "-"
        sign = ">=" if figure.at_least else "<="
        mark = "" if figure.kept else "   MISSED"
        bound = f"{sign} {figure.bound:g}"
        print(f"{figure.name:<52}{figure.value:>10.3g}{old:>10}{bound:>10} {figure.unit}{mark}")
    print("\n" + json.dumps({"machine": machine, "figures": [asdict(figure) for figure in figures]}))
    if record:
        write(machine, figures)


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
