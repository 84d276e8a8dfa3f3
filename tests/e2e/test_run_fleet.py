"""`supervisor run --flag value ...`: a whole fleet of child processes, as a small site starts it."""

import json
import signal
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from devgrid import REPOSITORY
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.ports import free_port
from devgrid.processes import Running, wait_until
from supervisor_tasks.cli.run_fleet import FLEET
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.grids import BLOCK_TIME_S
from tests.support.watching import wait_for_end

PATIENCE_S = 90.0
AS_FLAGS = ("SLURM_PARTITION", "SLURM_SSH_ADDRESS", "SLURM_SSH_ADMIN_USER", "METASCHEDULER_ENDPOINT_RPC", "TLS_ENABLE")


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    grid = Grid.start(GridOptions(block_time_s=BLOCK_TIME_S))
    try:
        yield grid
    finally:
        grid.stop()


@pytest.fixture
def fleet(grid: Grid) -> Iterator[Running]:
    with started(grid) as running:
        yield running


@contextmanager
def started(grid: Grid, *words: str, without: Collection[str] = (), **more: str) -> Iterator[Running]:
    """A fleet that serves the grid."""
    given = {name: value for name, value in grid.environment.items() if name not in (*AS_FLAGS, *without)} | more
    given |= {"FLOWER_PORT": str(free_port()), "METRICS_ADDRESS": f"127.0.0.1:{free_port()}"}
    given["HEALTH_ADDRESS"] = f"127.0.0.1:{free_port(in_a_row=len(FLEET))}"  # each process has the next one
    flags = [
        f"--{name.lower().replace('_', '.')}={grid.environment[name]}" for name in AS_FLAGS if name in grid.environment
    ]
    argv = [sys.executable, "-m", "supervisor_tasks.cli", "run", *words, *flags]
    running = grid.processes.start("fleet", argv, env=given, cwd=REPOSITORY)
    try:
        yield running
    finally:
        grid.processes.stop(running, PATIENCE_S)


def child(fleet: Running, name: str) -> psutil.Process | None:
    """The process of the fleet of that name, which its arguments tell."""
    process = fleet.process()
    words = {"callbacks": "grpc_callbacks", "metrics": "metrics"}.get(name, name)
    for found in [] if process is None else process.children():
        with suppress(psutil.NoSuchProcess):  # it ends just now
            if words in found.cmdline():
                return found
    return None


def told(grid: Grid) -> list[dict[str, Any]]:
    """The lines of the merged log; a last one that has not ended is left out. Each is an object of JSON."""
    *lines, _ = (grid.processes.logs / "fleet.log").read_text().split("\n")
    return [json.loads(line) for line in lines]


def settles(grid: Grid) -> ChainStatus:
    job_id = grid.submit_script(grid.new_customer(), "#!/bin/bash\nhostname\n")
    return wait_for_end(grid, job_id).status


def test_run_fleet__flags_and_variables__a_job_ends_and_a_killed_worker_starts_again(
    grid: Grid, fleet: Running
) -> None:
    wait_until(lambda: all(child(fleet, name) for name in FLEET), "the whole fleet", PATIENCE_S, 0.1)
    assert settles(grid) is ChainStatus.FINISHED
    worker = child(fleet, "worker")
    assert worker is not None
    worker.kill()
    ended = {"event": "process_ended", "process": "worker", "status": -9, "starts_again_in_s": 1}
    wait_until(lambda: any(ended.items() <= line.items() for line in told(grid)), "the line", PATIENCE_S, 0.1)
    assert settles(grid) is ChainStatus.FINISHED
    assert {str(line.get("process")) for line in told(grid)} >= {"migrate", "worker", "beat", "callbacks", "metrics"}
    process = fleet.process()
    assert process is not None
    children = process.children()
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: fleet.process() is None, "the fleet to end", PATIENCE_S, 0.1)
    assert [one for one in children if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []


def test_fleet__killed__its_children_end(grid: Grid, fleet: Running) -> None:
    wait_until(lambda: all(child(fleet, name) for name in FLEET), "the whole fleet", PATIENCE_S, 0.1)
    process = fleet.process()
    assert process is not None
    children = process.children(recursive=True)
    process.kill()
    gone, alive = psutil.wait_procs(children, PATIENCE_S)
    assert (len(gone), alive) == (len(children), [])


def test_run_fleet__embedded__needs_no_servers_of_the_site() -> None:
    other = Grid.start(GridOptions(block_time_s=BLOCK_TIME_S))  # whose wallet no other ledger has used
    state = other.folder / "embedded"
    try:
        with started(other, "--embedded", without=("DATABASE_URL", "BROKER_URL"), STATE_DIR=str(state)) as running:
            wait_until(lambda: all(child(running, name) for name in FLEET), "the whole fleet", PATIENCE_S, 0.1)
            assert settles(other) is ChainStatus.FINISHED
            assert (state / "postgres").is_dir()
        wait_until(lambda: not below(state), "the embedded servers to end with the fleet", PATIENCE_S, 0.2)
    finally:
        other.stop()


def below(folder: Path) -> list[str]:
    """The processes whose command line names the folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(folder) in " ".join(process.cmdline()):
                found.append(process.name())
    return found


def test_fleet__wrong_setting__ends_with_2_and_says_which(grid: Grid) -> None:
    argv = [sys.executable, "-m", "supervisor_tasks.cli", "run", "--chain-poll-s=often"]
    running = grid.processes.start("wrong", argv, env=grid.environment, cwd=REPOSITORY)
    wait_until(lambda: running.process() is None, "the fleet to end", PATIENCE_S, 0.1)
    assert "CHAIN_POLL_S: found 'often'" in (grid.processes.logs / "wrong.log").read_text()
