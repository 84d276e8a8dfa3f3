"""What an orchestrator sees of the real processes: /livez, /readyz and /metrics of each."""

import json
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from devgrid.fleet import REPOSITORY, Fleet
from devgrid.grid import Grid
from devgrid.machine import deadline, slowness
from devgrid.process import free_port, wait_until
from supervisor_tasks.monitoring.dependencies import EVERY_S
from supervisor_tasks.monitoring.progress import STANDS_AFTER_S

PROCESSES = ("worker", "beat", "callbacks", "flower")
SERVICE = {"redis": "broker", "postgres": "database", "anvil": "chain", "sshd": "login node"}
ANSWER_S = 0.02
REQUESTS = 40


class Probes:
    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.ports = {name: free_port() for name in PROCESSES}

    def fleet(self, name: str) -> Fleet:
        address = {"HEALTH_ADDRESS": f"127.0.0.1:{self.ports[name]}"}
        return Fleet(self.grid.processes, self.grid.environment | address)

    def ask(self, name: str, page: str) -> tuple[int, str]:
        """Status and body; status 0 where no process listens."""
        url = f"http://127.0.0.1:{self.ports[name]}/{page}"
        try:
            with urllib.request.urlopen(url, timeout=deadline(5)) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, repr(error)

    def state(self, name: str) -> Any:
        return json.loads(self.ask(name, "readyz")[1])

    def wait_for(self, name: str, status: int) -> None:
        """Until the process is ready (200), or is not (503)."""
        wait_until(lambda: self.ask(name, "readyz")[0] == status, f"{name} to answer {status}", 60.0)

    def wait_until_ready(self) -> None:
        for name in PROCESSES:
            self.wait_for(name, 200)


@pytest.fixture(scope="module")
def probes() -> Iterator[Probes]:
    grid = Grid.start(block_time_s=0.25)
    try:
        probes = Probes(grid)
        probes.fleet("worker").migrate()
        probes.fleet("callbacks").start_callbacks(wait=False)
        probes.fleet("worker").start_worker()
        probes.fleet("beat").start_beat()
        probes.fleet("flower").start_flower()
        probes.wait_until_ready()
        yield probes
    finally:
        grid.stop()


@contextmanager
def stopped(grid: Grid, name: str) -> Iterator[None]:
    """The server hangs, with the processes that it has for its connections: the kernel takes connections, no answer comes."""
    server = grid.processes.find(name).process()
    assert server is not None
    server.suspend()
    hanging = [server, *server.children(recursive=True)]
    for each in hanging:
        each.suspend()
    try:
        yield
    finally:
        for each in hanging:
            if each.is_running():
                each.resume()


@pytest.mark.parametrize(
    ("name", "services"),
    [
        ("worker", {"database", "broker", "chain", "login node"}),
        ("beat", {"database", "broker"}),
        ("callbacks", {"database", "broker"}),
        ("flower", {"broker"}),
    ],
)
def test_process__at_work__is_alive_and_tells_its_services(probes: Probes, name: str, services: set[str]) -> None:
    probes.wait_until_ready()
    status, said = probes.ask(name, "livez")
    assert (status, json.loads(said)["alive"]) == (200, True)
    state = probes.state(name)
    assert set(state["dependencies"]) == services
    assert all(service["ok"] and service["error"] is None for service in state["dependencies"].values())
    metrics = probes.ask(name, "metrics")[1].splitlines()
    assert any(line.startswith("supervisor_loop_age_seconds ") for line in metrics)
    assert all(f'supervisor_dependency_up{{dependency="{service}"}} 1.0' in metrics for service in services)
    assert any(line.startswith("process_cpu_seconds_total ") for line in metrics)


def test_broker_that_hangs__processes__are_alive_and_not_ready_until_it_is_back(probes: Probes) -> None:
    """A restart would not help: the broker hangs longer than a loop may stand, and livez is 200 all the time."""
    needing = ("worker", "beat", "flower")
    with stopped(probes.grid, "redis"):
        for name in needing:
            probes.wait_for(name, 503)
        until_s = time.monotonic() + STANDS_AFTER_S + 10
        while time.monotonic() < until_s:
            assert [probes.ask(name, "livez")[0] for name in PROCESSES] == [200] * len(PROCESSES)
            time.sleep(0.5)  # that nothing happens in a time can only be waited for
        assert probes.ask("callbacks", "readyz")[0] == 200
        assert not probes.state("callbacks")["dependencies"]["broker"]["ok"]
    probes.wait_until_ready()


@pytest.mark.parametrize(
    ("service", "waiting"), [("postgres", {"worker", "beat", "callbacks"}), ("anvil", {"worker"}), ("sshd", {"worker"})]
)
def test_service_that_hangs__those_who_need_it__are_not_ready(probes: Probes, service: str, waiting: set[str]) -> None:
    with stopped(probes.grid, service):
        for name in waiting:
            probes.wait_for(name, 503)
            assert not probes.state(name)["dependencies"][SERVICE[service]]["ok"]
        unconcerned = set(PROCESSES) - waiting
        assert all(probes.ask(name, "readyz")[0] == 200 for name in unconcerned)
        assert all(probes.ask(name, "livez")[0] == 200 for name in PROCESSES)
    probes.wait_until_ready()


@pytest.mark.parametrize("name", ["worker", "beat", "flower"])
def test_process_whose_loop_stands_still__is_not_alive_until_it_goes_on(probes: Probes, name: str) -> None:
    """strace holds the main thread in its next system call; the other threads go on. The gRPC process has ended by then: it
    asks itself (grpc_callbacks/self_check.py).
    """
    main_thread = str(probes.grid.processes.find(name).pid)
    hold = ["strace", "-qq", "-o", "/dev/null", "-e", "inject=all:delay_enter=600000000", "-p", main_thread]
    holding = probes.grid.processes.start(f"holding-{name}", hold)
    try:
        wait_until(lambda: probes.ask(name, "livez")[0] == 503, "livez to fail", STANDS_AFTER_S + 10)
        others = [other for other in PROCESSES if other != name]
        assert all(probes.ask(other, "livez")[0] == 200 for other in others)
    finally:
        probes.grid.processes.kill(holding)
    wait_until(lambda: probes.ask(name, "livez")[0] == 200, "the loop to go on", 30.0)


@pytest.mark.quiet_machine
@pytest.mark.parametrize("page", ["livez", "readyz", "metrics"])
@pytest.mark.parametrize("name", PROCESSES)
def test_answer__of_each_page__comes_at_once(probes: Probes, name: str, page: str) -> None:
    taken_s = []
    for _ in range(REQUESTS):
        begun_s = time.monotonic()
        assert probes.ask(name, page)[0] == 200
        taken_s.append(time.monotonic() - begun_s)
    assert statistics.median(taken_s) < ANSWER_S * slowness()


def test_worker_that_is_asked_to_end__is_alive_and_not_ready_and_ends(probes: Probes) -> None:
    worker = probes.grid.processes.find("worker")
    probes.grid.processes.kill(worker, signal.SIGTERM, wait=False)
    wait_until(lambda: probes.ask("worker", "readyz")[0] != 200, "the worker to be unready", 2 * EVERY_S)
    wait_until(lambda: worker.process() is None, "the worker to end", 30.0)
    assert probes.ask("worker", "livez")[0] == 0


def test_address_that_is_taken__ends_the_process_with_a_line(probes: Probes) -> None:
    environment = probes.grid.environment | {"HEALTH_ADDRESS": f"127.0.0.1:{probes.ports['beat']}"}
    argv = [sys.executable, "-m", "celery", "-A", "supervisor_tasks", "beat", "--pidfile="]
    ended = subprocess.run(argv, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=deadline(30))
    assert ended.returncode == 2
    assert "HEALTH_ADDRESS: found" in ended.stderr
