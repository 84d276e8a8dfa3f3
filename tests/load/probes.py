"""Measures the probes that orchestrators call every few seconds: the pages of each
process, and `supervisor health`.
"""

import http.client
import os
import statistics
import subprocess
import sys
import time
from contextlib import closing
from functools import partial

from devgrid import REPOSITORY
from devgrid.fleet import Fleet
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.ports import free_port
from devgrid.processes import wait_until
from tests.support.load_figures import Figure

PROCESSES = ("worker", "beat", "callbacks", "flower", "metrics", "reporter")
PAGES = ("livez", "readyz", "metrics")
REQUESTS = 500
HEALTHS = 11
HUNDREDTHS = 100


def figures() -> list[Figure]:
    """Measure the probes of a whole fleet without work, and of a reporter."""
    grid = Grid.start(GridOptions())
    try:
        ports = {name: free_port() for name in PROCESSES}
        start(grid, ports)
        for name, port in ports.items():
            ready = partial(is_ready, port)
            wait_until(ready, f"{name} to be ready", 60.0, 0.2)
        pages = [
            Figure(f"/{page} of {name}, p99", _p99_ms(port, page), "ms", 20.0)
            for name, port in ports.items()
            for page in PAGES
        ]
        health_s = statistics.median(
            _health_s(grid.environment) for _ in range(HEALTHS)
        )
    finally:
        grid.stop()
    return [
        *pages,
        Figure(f"supervisor health, median of {HEALTHS}", health_s, "s", 0.5),
    ]


def start(grid: Grid, ports: dict[str, int]) -> None:
    """Start the fleet, and a reporter of its own spool beside the grid's. Each serves
    its pages at its port.
    """

    def fleet(name: str) -> Fleet:
        address = {"HEALTH_ADDRESS": f"127.0.0.1:{ports[name]}"}
        return Fleet(grid.processes, grid.environment | address)

    fleet("worker").migrate()
    fleet("callbacks").start_callbacks(wait=False)
    fleet("worker").start_worker()
    fleet("beat").start_beat()
    fleet("flower").start_flower()
    fleet("metrics").start_metrics(ports["metrics"])
    spool = grid.folder / "spool-of-the-measured"
    spool.mkdir()
    options = {
        "--spool": spool,
        "--supervisor": grid.environment["PUBLIC_ADDRESS"],
        "--ca": grid.cluster.certificates.ca,
        "--health": f"127.0.0.1:{ports['reporter']}",
    }
    words = [str(word) for option in options.items() for word in option]
    argv = [sys.executable, "-m", "plugins.reporter", *words]
    grid.processes.start("measured-reporter", argv, cwd=REPOSITORY, env=os.environ)


def is_ready(port: int) -> bool:
    """Whether a process answers there that it is ready."""
    try:
        return _status(port, "readyz") == http.HTTPStatus.OK
    except OSError:
        return False


def _p99_ms(port: int, page: str) -> float:
    times_ms = []
    for _ in range(REQUESTS):
        begun_s = time.perf_counter()
        _status(port, page)
        times_ms.append(1000 * (time.perf_counter() - begun_s))
    return statistics.quantiles(times_ms, n=HUNDREDTHS)[-1]


def _health_s(environment: dict[str, str]) -> float:
    """The seconds that one run of the command takes. The fleet may still be unhealthy,
    as it has just been started.
    """
    begun_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "supervisor_tasks.cli", "health"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
    )
    if done.returncode not in (os.EX_OK, 1) or not done.stdout:
        raise RuntimeError(
            f"supervisor health ended with status {done.returncode}: {done.stderr.decode()}"
        )
    return time.perf_counter() - begun_s


def _status(port: int, page: str) -> int:
    with closing(
        http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    ) as connection:
        connection.request("GET", f"/{page}")
        answer = connection.getresponse()
        answer.read()
        return answer.status
