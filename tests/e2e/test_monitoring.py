"""What a real Prometheus sees of a whole grid: the pages of all processes, the alert
rules, each query of the dashboard.
"""

import json
import math
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devgrid import REPOSITORY
from devgrid.chain.model import Account
from devgrid.fleet import Fleet
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.options import GridOptions
from devgrid.ports import free_port
from devgrid.processes import wait_until
from tests.support.grid_assertions import rows, wait_for_end
from tests.support.grids import BLOCK_TIME_S

CHART_FILES = REPOSITORY / "docker" / "helm" / "grid-supervisor" / "files"
DASHBOARD: dict[str, Any] = json.loads((CHART_FILES / "dashboard.json").read_text())
QUERIES = sorted(
    {
        target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    }
)
PROCESSES = ("ledger", "worker", "beat", "callbacks", "flower")
# longer than this file takes, so that what happened in it is within the interval
RATE_INTERVAL = "1h"


class Monitored:
    """A grid whose processes serve their pages, and the Prometheus that scrapes
    them.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.ports = {name: free_port() for name in PROCESSES}
        self.url = f"http://127.0.0.1:{free_port()}"

    def fleet(self, name: str) -> Fleet:
        address = {"HEALTH_ADDRESS": f"127.0.0.1:{self.ports[name]}"}
        return Fleet(self.grid.processes, self.grid.environment | address)

    def start_fleet(self) -> None:
        self.fleet("worker").migrate()
        self.fleet("callbacks").start_callbacks()
        self.fleet("worker").start_worker()
        self.fleet("beat").start_beat()
        self.fleet("flower").start_flower()
        self.fleet("ledger").start_metrics(self.ports["ledger"])

    def start_prometheus(self) -> None:
        folder = self.grid.folder / "prometheus"
        folder.mkdir()
        targets = "".join(
            f'  - {{job_name: {name}, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}\n'
            for name, port in self.ports.items()
        )
        settings = "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        config = folder / "prometheus.yaml"
        config.write_text(
            f"{settings}rule_files: [{CHART_FILES / 'rules.yaml'}]\nscrape_configs:\n{targets}"
        )
        argv: list[str | Path] = [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
        ]
        argv.append(f"--web.listen-address={self.url.removeprefix('http://')}")
        self.grid.processes.start("prometheus", argv, env={}, cwd=folder)

    def page(self, name: str) -> str:
        return read(f"http://127.0.0.1:{self.ports[name]}/metrics")

    def asked(self, query: str) -> list[float]:
        """The values of a query that are numbers; a query that Prometheus refuses
        raises HTTPError.
        """
        answer = json.loads(
            read(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
        )
        assert answer["status"] == "success"
        values = (float(series["value"][1]) for series in answer["data"]["result"])
        return [value for value in values if not math.isnan(value)]

    def rules(self) -> list[dict[str, Any]]:
        (group,) = json.loads(read(f"{self.url}/api/v1/rules"))["data"]["groups"]
        found: list[dict[str, Any]] = group["rules"]
        return found

    def sees_all(self) -> bool:
        """Whether each page was read twice: what counts from now on has a value before
        it.
        """
        try:
            return len(self.asked("count_over_time((up == 1)[1m:1s]) >= 2")) == len(
                PROCESSES
            )
        except OSError:
            return False

    def settled(self, job_id: str) -> bool:
        return bool(
            rows(
                self.grid,
                "SELECT 1 FROM jobs WHERE job_id = :id AND state = 'SETTLED'",
                id=job_id,
            )
        )


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=deadline(30)) as answer:  # noqa: S310  this machine's
        return str(answer.read().decode())


@pytest.fixture(scope="module")
def monitored() -> Iterator[Monitored]:
    """A grid on which a job has finished, one has failed, one runs, and the wallet is
    empty.
    """
    grid = Grid.start(GridOptions(block_time_s=BLOCK_TIME_S))
    try:
        found = Monitored(grid)
        found.start_fleet()
        found.start_prometheus()
        wait_until(
            found.sees_all, "Prometheus to read each page twice", 120.0, every_s=0.5
        )
        carry_jobs(found, grid.new_customer())
        grid.chain.set_balance(grid.chain.account("provider"), 0)
        yield found
    finally:
        grid.stop()


def carry_jobs(found: Monitored, customer: Account) -> None:
    scripts = ("sleep 1", "sleep 1; exit 3", "sleep 600")
    finished, failed, _ = [
        found.grid.submit_script(customer, f"#!/bin/bash\n{script}\n")
        for script in scripts
    ]
    for job_id in (finished, failed):
        wait_for_end(found.grid, job_id)
        wait_until(
            lambda job_id=job_id: found.settled(job_id),  # type: ignore[misc]
            f"{job_id} to be settled",
            60.0,
        )


@pytest.mark.parametrize("name", PROCESSES)
def test_page__of_each_process__has_no_fault_and_the_cluster_everywhere(
    monitored: Monitored, name: str
) -> None:
    page = monitored.page(name)
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=page,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    cluster = f'cluster="{monitored.grid.cluster.name}"'
    samples = [line for line in page.splitlines() if not line.startswith("#")]
    assert [line for line in samples if cluster not in line] == []
    assert any(line.startswith("supervisor_build_info{") for line in samples)


def test_alert_rules__in_prometheus__are_evaluated_and_see_the_empty_wallet(
    monitored: Monitored,
) -> None:
    def alarm_is_seen() -> bool:
        rules = monitored.rules()
        seen = {
            rule["name"] for rule in rules if rule["state"] in ("pending", "firing")
        }
        return "SupervisorAlarm" in seen and all(
            rule["health"] != "unknown" for rule in rules
        )

    wait_until(alarm_is_seen, "Prometheus to see the alarm", 60.0, every_s=0.5)
    assert {
        rule["name"]: rule.get("lastError")
        for rule in monitored.rules()
        if rule["health"] != "ok"
    } == {}


@pytest.mark.parametrize("query", QUERIES)
def test_dashboard__each_query__finds_numbers_of_the_grid(
    monitored: Monitored, query: str
) -> None:
    concrete = query.replace("$__rate_interval", RATE_INTERVAL).replace(
        "$cluster", monitored.grid.cluster.name
    )
    assert not re.search(r"\$", concrete)
    wait_until(
        lambda: bool(monitored.asked(concrete)),
        f"an answer to {concrete}",
        60.0,
        every_s=0.5,
    )


def test_dashboard__share_of_failed_jobs__is_that_of_the_grid(
    monitored: Monitored,
) -> None:
    (query,) = [query for query in QUERIES if "failed|panicked" in query]
    concrete = query.replace("$cluster", monitored.grid.cluster.name)
    half = [pytest.approx(0.5, abs=0.01)]
    wait_until(
        lambda: monitored.asked(concrete) == half,
        "a half of the jobs to be shown as failed",
        60.0,
        every_s=0.5,
    )
