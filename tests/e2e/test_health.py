"""What an orchestrator sees of the real processes: /livez, /readyz and /metrics of
each; and what the operator sees: Flower.
"""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from devgrid import REPOSITORY
from devgrid.fleet import Fleet
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.options import GridOptions
from devgrid.ports import free_port
from devgrid.processes import wait_until
from plugins.probes.dependencies import EVERY_S
from plugins.probes.progress import STALLED_AFTER_S
from supervisor_tasks.observability.loop_watchdog import (
    CHECK_EVERY_S,
    CONFIRMING_CHECKS,
    ENDED_AFTER_S,
)
from tests.support import health_pages
from tests.support.grid_assertions import wait_for_end
from tests.support.grids import BLOCK_TIME_S
from tests.support.holding import main_thread_held
from tests.support.live_processes import hung
from tests.support.marks import in_chaos

PROCESSES = ("worker", "beat", "callbacks", "flower", "metrics")
SERVICE = {
    "redis": "broker",
    "postgres": "database",
    "anvil": "chain",
    "sshd": "login node",
}


class Probes:
    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.ports = {name: free_port() for name in PROCESSES}
        self.flower_url = ""

    def fleet(self, name: str) -> Fleet:
        address = {"HEALTH_ADDRESS": f"127.0.0.1:{self.ports[name]}"}
        return Fleet(self.grid.processes, self.grid.environment | address)

    def ask(self, name: str, page: str) -> tuple[int, str]:
        return health_pages.ask(self.ports[name], page)

    def answer(self, name: str, page: str) -> tuple[int, str]:
        return health_pages.answer(self.ports[name], page)

    def services(self, name: str) -> dict[str, Any]:
        return health_pages.dependencies(self.ports[name])

    def is_alive(self, name: str) -> bool:
        status, said = self.ask(name, "livez")
        return status == 200 and json.loads(said)["alive"] is True

    def wait_until_alive(self, *names: str) -> None:
        """At once, unless the machine left a loop without a core."""
        wait_until(
            lambda: all(self.is_alive(name) for name in names),
            f"{', '.join(names)} to be alive",
            5.0,
        )

    def wait_for(self, name: str, status: int) -> None:
        """Until the process is ready (200), or is not (503)."""
        wait_until(
            lambda: self.ask(name, "readyz")[0] == status,
            f"{name} to answer {status}",
            60.0,
        )

    def wait_for_loss(self, name: str, service: str) -> None:
        """Until the process tells that it misses the service. It may be unready for
        another reason before.
        """
        what = f"{name} to miss {service}"
        wait_until(
            lambda: self.services(name).get(service, {}).get("ok") is False, what, 60.0
        )

    def wait_until_ready(self) -> None:
        for name in PROCESSES:
            self.wait_for(name, 200)


@pytest.fixture(scope="module")
def probes() -> Iterator[Probes]:
    grid = Grid.start(GridOptions(block_time_s=BLOCK_TIME_S))
    try:
        probes = Probes(grid)
        probes.fleet("worker").migrate()
        probes.fleet("callbacks").start_callbacks(wait=False)
        probes.fleet("worker").start_worker()
        probes.fleet("beat").start_beat()
        flower = probes.fleet("flower")
        flower.start_flower()
        probes.flower_url = flower.flower_url
        listen = ["--listen", f"127.0.0.1:{probes.ports['metrics']}"]
        argv = [sys.executable, "-m", "supervisor_tasks.cli", "metrics", *listen]
        grid.processes.start("metrics", argv, cwd=REPOSITORY, env=grid.environment)
        probes.wait_until_ready()
        yield probes
    finally:
        grid.stop()


@contextmanager
def stopped(grid: Grid, name: str) -> Iterator[None]:
    """The server hangs, with the processes that it has for its connections."""
    server = grid.processes.find(name).process()
    assert server is not None
    with hung(server):
        yield


@pytest.mark.parametrize(
    ("name", "services"),
    [
        ("worker", {"database", "broker", "chain", "login node"}),
        ("beat", {"database", "broker"}),
        ("callbacks", {"database", "broker"}),
        ("flower", {"broker"}),
        ("metrics", {"database"}),
    ],
)
def test_process__at_work__is_alive_and_tells_its_services(
    probes: Probes, name: str, services: set[str]
) -> None:
    probes.wait_until_ready()
    # its loop may have no core for 15 s on a busy machine
    wait_until(lambda: probes.is_alive(name), f"{name} to be alive", 60.0)
    wait_until(
        lambda: (
            {
                service: (found["ok"], found["error"])
                for service, found in probes.services(name).items()
            }
            == dict.fromkeys(services, (True, None))
        ),
        f"{name} to reach {services}",
        60.0,
    )
    metrics = probes.answer(name, "metrics")[1].splitlines()
    for metric in (
        "supervisor_loop_timestamp_seconds",
        "process_cpu_seconds_total",
        "supervisor_build_info",
    ):
        assert any(line.startswith(f"{metric}{{cluster=") for line in metrics)
    wait_until(
        lambda: services_up(probes.ask(name, "metrics")[1]) == services,
        f"{name} to count {services} as up",
        60.0,
    )


def services_up(metrics: str) -> set[str]:
    return {
        line.split('dependency="')[1].split('"')[0]
        for line in metrics.splitlines()
        if line.startswith('supervisor_dependency_up{cluster="')
        and line.endswith("} 1.0")
    }


# --- Flower, in a real browser --------------------------------------------------------


@pytest.fixture(scope="module")
def flower(probes: Probes) -> str:
    return probes.flower_url


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    profile = tmp_path_factory.mktemp("chromium")
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        f"--user-data-dir={profile}",
        "--window-size=1600,1000",
    ):
        options.add_argument(flag)
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService("/usr/bin/chromedriver")
    )
    yield driver
    driver.quit()


def workers(flower: str) -> int:
    with urllib.request.urlopen(  # noqa: S310
        f"{flower}/workers?json=1", timeout=deadline(10)
    ) as answer:
        return sum(1 for worker in json.load(answer)["data"] if worker["status"])


def test_flower__job_by_its_id__shows_each_task_that_is_about_it(
    probes: Probes, flower: str, browser: webdriver.Chrome, tmp_path: Path
) -> None:
    grid = probes.grid
    wait_until(lambda: workers(flower) > 0, "Flower to see the worker", 30.0, 0.2)
    job_id = grid.submit_script(grid.new_customer(), "#!/bin/bash\ntrue\n")
    wait_for_end(grid, job_id)
    browser.get(f"{flower}/tasks")
    wait = WebDriverWait(
        browser, deadline(60), ignored_exceptions=(StaleElementReferenceException,)
    )  # the page replaces its rows
    search = wait.until(
        lambda page: page.find_element(By.CSS_SELECTOR, "input[type=search]")
    )
    search.send_keys(job_id)

    def names_shown(page: webdriver.Chrome) -> set[str]:
        """The task's name is a row's first word."""
        rows = [
            row.text
            for row in page.find_elements(By.CSS_SELECTOR, "#tasks-table tbody tr")
        ]
        return {text.split()[0] for text in rows if job_id[:10] in text}

    wait.until(lambda page: {"fetch", "submit", "poll_jobs"} <= names_shown(page))
    assert browser.save_screenshot(str(tmp_path / "flower.png"))


def test_flower__broker_page__shows_the_queues_of_the_cluster(
    flower: str, browser: webdriver.Chrome
) -> None:
    queues = ("devgrid.chain", "devgrid.slurm", "devgrid.default")

    # once Flower has heard from the worker which queues it reads
    def shows_all(page: webdriver.Chrome) -> bool:
        page.get(f"{flower}/broker")
        text = page.find_element(By.TAG_NAME, "body").text
        return all(queue in text for queue in queues)

    WebDriverWait(browser, deadline(30)).until(shows_all)


# --- what hangs -----------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.quiet_machine  # a loop that waits 10 s for the broker may stand for 15 s
def test_broker_that_hangs__processes__are_alive_and_not_ready_until_it_is_back(
    probes: Probes,
) -> None:
    """A restart would not help: the broker hangs longer than a loop may stand, and
    livez is 200 all the time.
    """
    needing = ("worker", "beat", "flower")
    with stopped(probes.grid, "redis"):
        for name in needing:
            probes.wait_for(name, 503)
        until_s = time.monotonic() + STALLED_AFTER_S + 10
        while time.monotonic() < until_s:
            assert [probes.answer(name, "livez")[0] for name in PROCESSES] == [
                200
            ] * len(PROCESSES)
            time.sleep(0.5)  # that nothing happens in a time can only be waited for
        probes.wait_for("callbacks", 200)
        probes.wait_for_loss("callbacks", "broker")
    probes.wait_until_ready()


@pytest.mark.parametrize(
    ("service", "waiting"),
    [
        ("postgres", {"worker", "beat", "callbacks", "metrics"}),
        ("anvil", {"worker"}),
        ("sshd", {"worker"}),
    ],
)
def test_health__a_service_hangs__processes_that_need_it_are_not_ready(
    probes: Probes, service: str, waiting: set[str]
) -> None:
    with stopped(probes.grid, service):
        for name in waiting:
            probes.wait_for(name, 503)
            probes.wait_for_loss(name, SERVICE[service])
        for name in set(PROCESSES) - waiting:
            probes.wait_for(name, 200)
        probes.wait_until_alive(*PROCESSES)
    probes.wait_until_ready()


@pytest.mark.parametrize(
    "name", ["worker", in_chaos("beat"), in_chaos("flower"), "metrics"]
)
def test_process__its_loop_is_stalled__is_not_alive_until_it_goes_on(
    probes: Probes, name: str
) -> None:
    """The gRPC process has ended by then: it asks itself
    (grpc_callbacks/self_check.py).
    """
    with main_thread_held(
        probes.grid.processes, name, lambda: probes.ask(name, "livez")[0] != 0
    ):
        wait_until(
            lambda: probes.ask(name, "livez")[0] == 503,
            "livez to fail",
            STALLED_AFTER_S + 10,
        )
        probes.wait_until_alive(*(other for other in PROCESSES if other != name))
    wait_until(lambda: probes.ask(name, "livez")[0] == 200, "the loop to go on", 30.0)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["beat", in_chaos("flower"), "metrics"])
def test_process__its_loop_is_stalled_for_a_minute__ends_with_a_line(
    probes: Probes, name: str
) -> None:
    """systemd and compose start a process again only when it ends."""
    processes = probes.grid.processes
    held, log = processes.find(name), processes.logs / f"{name}.log"
    with main_thread_held(processes, name, lambda: probes.ask(name, "livez")[0] != 0):
        wait_until(
            lambda: "main_loop_stalled" in log.read_text(),
            f"{name} to tell that its loop is stalled",
            ENDED_AFTER_S + CONFIRMING_CHECKS * CHECK_EVERY_S + 15,
        )
        wait_until(lambda: probes.ask(name, "livez")[0] == 0, f"{name} to end", 10.0)
    # strace has held what is left of it
    wait_until(lambda: held.process() is None, f"{name} to be gone", 10.0)
    processes.start_again(name)
    probes.wait_for(name, 200)


def test_worker__asked_to_end__is_not_ready_and_ends(
    probes: Probes,
) -> None:
    worker = probes.grid.processes.find("worker")
    probes.grid.processes.kill(worker, signal.SIGTERM, wait=False)
    wait_until(
        lambda: probes.ask("worker", "readyz")[0] != 200,
        "the worker to be unready",
        2 * EVERY_S,
    )
    wait_until(lambda: worker.process() is None, "the worker to end", 30.0)
    assert probes.ask("worker", "livez")[0] == 0


def test_health_address__that_is_taken__ends_the_process_with_a_line(
    probes: Probes,
) -> None:
    environment = probes.grid.environment | {
        "HEALTH_ADDRESS": f"127.0.0.1:{probes.ports['beat']}"
    }
    argv = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "supervisor_tasks",
        "beat",
        "--pidfile=",
    ]
    ended = subprocess.run(
        argv,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=deadline(30),
    )
    assert ended.returncode == 2
    assert "HEALTH_ADDRESS: found" in ended.stderr
