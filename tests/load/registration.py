"""Measures how soon a changed price is on chain after a restart without benchmarks."""

import time

from devgrid.grid import Grid
from devgrid.processes import wait_until
from tests.support.grid_assertions import waiting_cpu_price_wei
from tests.support.load_figures import Figure

BLOCK_TIME_S = 1.0
POLL_S = 1.0  # CHAIN_POLL_S
RESTARTS = 5
EVERY_S = 0.005
READY = "ready."  # the end of the line that Celery logs when it is ready


def price_on_chain(grid: Grid) -> list[Figure]:
    """The seconds from a ready worker to the block that has the price, the most of some
    restarts. Blocks take a second.
    """
    waits_s = []
    for number in range(1, RESTARTS + 1):
        price_wei = 95 * 10**16 + number
        grid.processes.stop(grid.processes.find("worker"))
        grid.environment["METASCHEDULER_CPU_PRICE_PER_MIN"] = str(price_wei)
        log = grid.folder / "log" / "worker.log"
        begun = log.read_text().count(READY)
        grid.fleet.start_worker()
        wait_until(
            lambda: log.read_text().count(READY) > begun,  # noqa: B023
            "the worker to be ready",
            60.0,
            EVERY_S,
        )
        ready_s = time.monotonic()
        wait_until(
            lambda: waiting_cpu_price_wei(grid) == price_wei,  # noqa: B023
            "the new price",
            60.0,
            EVERY_S,
        )
        waits_s.append(time.monotonic() - ready_s)
    bound_s = POLL_S + BLOCK_TIME_S
    return [
        Figure(
            f"changed price on chain after a restart, slowest of {RESTARTS}",
            max(waits_s),
            "s",
            bound_s,
        )
    ]
