"""Measures the probes that orchestrators call every few seconds: /livez and /readyz of
a process, and `supervisor health`.
"""

import http.client
import os
import statistics
import subprocess
import sys
import time
from contextlib import closing

from devgrid import REPOSITORY
from devgrid.ports import free_port
from devgrid.processes import answers, wait_until
from tests.load.figures import Figure
from tests.support.ledger import migrated

PAGES = ("livez", "readyz")
REQUESTS = 500
HEALTHS = 11
HUNDREDTHS = 100


def figures() -> list[Figure]:
    """Measure the probes of a beat that works, with a Postgres and an embedded
    Redis.
    """
    with migrated() as (_, environment):
        port = free_port()
        settings = environment | {"HEALTH_ADDRESS": f"127.0.0.1:{port}"}
        argv = [
            sys.executable,
            "-m",
            "supervisor_tasks.cli",
            "run",
            "beat",
            "--embedded",
        ]
        with subprocess.Popen(
            argv,
            cwd=REPOSITORY,
            env=settings,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as beat:
            try:
                wait_until(lambda: answers(port), "beat to serve its probes", 60.0)
                wait_until(
                    lambda: _status(port, "readyz") == http.HTTPStatus.OK,
                    "beat to be ready",
                    60.0,
                )
                pages = [
                    Figure(f"/{page} of beat, p99", _p99_ms(port, page), "ms", 20.0)
                    for page in PAGES
                ]
                health_s = statistics.median(
                    _health_s(environment) for _ in range(HEALTHS)
                )
            finally:
                beat.terminate()
    return [
        *pages,
        Figure(f"supervisor health, median of {HEALTHS}", health_s, "s", 0.5),
    ]


def _p99_ms(port: int, page: str) -> float:
    times_ms = []
    for _ in range(REQUESTS):
        begun_s = time.perf_counter()
        _status(port, page)
        times_ms.append(1000 * (time.perf_counter() - begun_s))
    return statistics.quantiles(times_ms, n=HUNDREDTHS)[-1]


def _health_s(environment: dict[str, str]) -> float:
    """The seconds that one run of the command takes. It reports that the fleet is
    unhealthy, as only beat runs.
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
