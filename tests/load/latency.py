"""Measures how long one job at a time waits on an idle grid."""

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from devgrid.chain.chain import Chain
from devgrid.grid import Grid
from devgrid.processes import wait_until
from tests.support.grid_assertions import rows, wait_for_end
from tests.support.load_figures import Figure

JOBS = 50
BLOCK_POLL_S = 0.01
P50_BOUND_S, P95_BOUND_S = 0.20, 0.40
POLLED_P50_BOUND_S, POLLED_P95_BOUND_S = 0.70, 1.05
SEEN_WITHIN_S = 0.2  # from a block to its receipts in the ledger
NEXT_BLOCK_BOUND_S = 1.0 + SEEN_WITHIN_S


def claim_latency(grid: Grid) -> list[Figure]:
    """The time from sending metaSchedule to calling sbatch, with the chain's WebSocket:
    new blocks start the fleet's work.
    """
    return percentiles(
        "claimable to sbatch, with WebSocket",
        claim_waits_s(grid),
        P50_BOUND_S,
        P95_BOUND_S,
    )


def polled_claim_latency(grid: Grid) -> list[Figure]:
    """The same if the chain's WebSocket does not answer."""
    name = "claimable to sbatch, without WebSocket"
    return percentiles(
        name, claim_waits_s(grid), POLLED_P50_BOUND_S, POLLED_P95_BOUND_S
    )


def completion(grid: Grid) -> list[Figure]:
    """The time from a completion callback until the ledger has its FINISHED as mined,
    and the same from the first block after the callback. The callbacks come at all
    moments between two blocks.
    """
    customer = grid.new_customer()
    with block_times(grid.chain) as blocks_s:
        for number in range(JOBS):
            job_id = grid.submit_script(
                customer, f"#!/bin/bash\nsleep {0.5 + 0.37 * number % 1:.2f}\n"
            )
            schedule(grid, job_id)
            wait_for_end(grid, job_id)
            wait_until(
                lambda one=job_id: is_settled(grid, one),  # type: ignore[misc]
                "the ledger to settle the job",
                10.0,
                0.05,
            )
    query = """
        SELECT EXTRACT(EPOCH FROM c.received_at)::float8 AS called_s, EXTRACT(EPOCH FROM t.done_at)::float8 AS mined_s
        FROM callbacks c JOIN jobs j ON j.job_id = c.job_id JOIN transactions t ON t.job_id = c.job_id
        WHERE c.status = 7 AND t.purpose = 'report FINISHED' AND j.customer = :customer"""
    reports = rows(grid, query, customer=customer.address)
    after_block_s = [
        row.mined_s - next_block_s(blocks_s, row.called_s) for row in reports
    ]
    in_its_block = sum(waited_s <= SEEN_WITHIN_S for waited_s in after_block_s)
    name = "callback to FINISHED mined"
    return [
        *percentiles(name, [row.mined_s - row.called_s for row in reports], 2.0, 3.0),
        Figure(
            f"{name}, after the callback's block, p95 of {JOBS}",
            p95(after_block_s),
            "s",
            NEXT_BLOCK_BOUND_S,
        ),
        Figure(
            f"{name}: in the callback's block",
            100 * in_its_block / len(reports),
            "%",
            0,
            at_least=True,
        ),
    ]


def claim_waits_s(grid: Grid) -> list[float]:
    """The seconds that each of JOBS jobs waits for sbatch."""
    customer = grid.new_customer()
    warm_up = grid.submit_script(customer, "#!/bin/bash\ntrue\n")
    schedule(grid, warm_up)
    wait_for_end(grid, warm_up)
    waits_s = []
    for number in range(JOBS):
        job_id = grid.submit_script(customer, "#!/bin/bash\ntrue\n")
        time.sleep(0.037 * number % 1.0)  # not in step with the poll of the chain
        began_s = time.time()
        schedule(grid, job_id)
        wait_for_end(grid, job_id)
        query = "SELECT EXTRACT(EPOCH FROM at)::float8 AS s FROM events WHERE name = 'SubmitStarted' AND job_id = :job_id"
        waits_s.append(rows(grid, query, job_id=job_id)[0].s - began_s)
    return waits_s


@contextmanager
def block_times(chain: Chain) -> Iterator[list[float]]:
    """Yields the list of the times at which new blocks came, as Unix times: a block's
    own timestamp has whole seconds.
    """
    seen_s, done = list[float](), threading.Event()

    def watch() -> None:
        last = chain.block_number()
        while not done.wait(BLOCK_POLL_S):
            number = chain.block_number()
            if number > last:
                seen_s.append(time.time())
            last = number

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield seen_s
    finally:
        done.set()
        watching.join()


def next_block_s(blocks_s: Sequence[float], after_s: float) -> float:
    """The time at which the first block after that time came."""
    return next(block_s for block_s in blocks_s if block_s > after_s)


def percentiles(
    name: str, waits_s: list[float], p50_bound: float, p95_bound: float
) -> list[Figure]:
    """The median and the 95th percentile of the waits."""
    return [
        Figure(
            f"{name}, p50 of {len(waits_s)}", statistics.median(waits_s), "s", p50_bound
        ),
        Figure(f"{name}, p95 of {len(waits_s)}", p95(waits_s), "s", p95_bound),
    ]


def p95(waits_s: list[float]) -> float:
    """The 95th percentile."""
    return statistics.quantiles(waits_s, n=20, method="inclusive")[18]


def schedule(grid: Grid, job_id: str) -> None:
    """Give a job to the provider."""
    grid.chain.admin.meta_schedule([job_id], grid.chain.account("provider").address)


def is_settled(grid: Grid, job_id: str) -> bool:
    """Whether the ledger has settled the job."""
    query = (
        "SELECT count(*) AS n FROM jobs WHERE state = 'SETTLED' AND job_id = :job_id"
    )
    return bool(rows(grid, query, job_id=job_id)[0].n == 1)
