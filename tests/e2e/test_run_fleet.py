"""`supervisor run --flag value ...`: a whole fleet of child processes, as a small site
starts it.
"""

import json
import re
import signal
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil
import pytest

from devgrid import REPOSITORY
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.ports import free_port
from devgrid.processes import Running, wait_until
from supervisor_tasks.cli.fleet_flags import REPEATED
from supervisor_tasks.cli.run_fleet import FLEET
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.grid_assertions import wait_for_end
from tests.support.grids import BLOCK_TIME_S
from tests.support.live_processes import asked, children, descendants, is_alive

PATIENCE_S = 90.0
GUIDE = (REPOSITORY / "docs" / "how-to" / "migrate-from-go.md").read_text()
# Each variable of the Go program, and the ways to write its flag.
GO_FLAGS = {
    variable: re.findall(r"`(-[-.\w]+)`", flags)
    for flags, variable in re.findall(
        r"^\| (`-.*?) \| `(\w+)`.* \|$", GUIDE, re.MULTILINE
    )
}
# What the Go program takes where nothing is said, or a value that it would take, where
# the grid gives none.
GO_VALUES = {
    "SBATCH_TLS_ENABLE": "true",
    "SBATCH_TLS_INSECURE": "false",
    "SLURM_SBATCH_PATH": "/usr/bin/sbatch",
    "SLURM_SCANCEL_PATH": "/usr/bin/scancel",
    "SLURM_SQUEUE_PATH": "/usr/bin/squeue",
    "SLURM_SCONTROL_PATH": "/usr/bin/scontrol",
    "SLURM_SINFO_PATH": "/usr/bin/sinfo",
    "SLURM_PARTITION": "main",
    "NVIDIA_SMI_PATH": "nvidia-smi",
    "BENCHMARK_RUN_AS": "root",
    "BENCHMARK_TIME_LIMIT": "24h0m0s",
    "BENCHMARK_TRACE": "false",
    "BENCHMARK_UNRESPONSIVE": "false",
    "BENCHMARK_HPL_IMAGE": "registry-1.deepsquare.run#library/hpc-benchmarks:23.5",
    "BENCHMARK_HPL_SINGLE_NODE": "false",
    "BENCHMARK_OSU_IMAGE": "registry-1.deepsquare.run#library/osu-benchmarks:latest",
    "BENCHMARK_IOR_IMAGE": "registry-1.deepsquare.run#library/ior-benchmarks:latest",
    "BENCHMARK_IOR_SINGLE_NODE": "false",
    "BENCHMARK_SPEEDTEST_IMAGE": "registry-1.docker.io#gists/speedtest-cli:1.2.0",
    "BENCHMARK_UCX": "false",
    "BENCHMARK_UCX_AFFINITY": "mlx5_0:1",
    "BENCHMARK_UCX_TRANSPORT": "sm,self,rc",
    "BENCHMARK_ENV": "UCX_LOG_LEVEL=warn,OMP_NUM_THREADS=1",
    "TRACE": "false",
}
AS_FLAGS = (
    "SLURM_PARTITION",
    "SLURM_SSH_ADDRESS",
    "SLURM_SSH_ADMIN_USER",
    "METASCHEDULER_ENDPOINT_RPC",
    "TLS_ENABLE",
)


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    grid = Grid.start(GridOptions(block_time_s=BLOCK_TIME_S))
    try:
        yield grid
    finally:
        grid.stop()


def go_flags(environment: Mapping[str, str]) -> list[str]:
    """Every flag of the Go program, written as its users write them, with the grid's
    values.
    """
    words: list[str] = []
    for variable, flags in GO_FLAGS.items():
        value = environment.get(variable, GO_VALUES.get(variable))
        assert value is not None, (
            f"{variable}: found no value; expected one in GO_VALUES"
        )
        if variable in REPEATED:
            words += [
                word
                for flag, entry in zip(cycle(flags), value.split(","))
                for word in (flag, entry)
            ]
        elif value in ("true", "false"):
            words += flags if value == "true" else [f"{flag}=false" for flag in flags]
        else:
            words += [flags[0], value]
    return words


@pytest.fixture
def fleet(grid: Grid) -> Iterator[Running]:
    with started(grid) as running:
        yield running


@contextmanager
def started(
    grid: Grid,
    *words: str,
    name: str = "fleet",
    without: Collection[str] = (),
    as_flags: Collection[str] = AS_FLAGS,
    cwd: Path = REPOSITORY,
    **more: str,
) -> Iterator[Running]:
    """A fleet that serves the grid. `name` is that of its log."""
    given = {
        name: value
        for name, value in grid.environment.items()
        if name not in (*as_flags, *without)
    } | more
    given |= {
        "FLOWER_PORT": str(free_port()),
        "METRICS_ADDRESS": f"127.0.0.1:{free_port()}",
    }
    # each process has the next one
    given["HEALTH_ADDRESS"] = f"127.0.0.1:{free_port(in_a_row=len(FLEET))}"
    flags = [
        f"--{name.lower().replace('_', '.')}={grid.environment[name]}"
        for name in as_flags
        if name in grid.environment
    ]
    argv = [sys.executable, "-m", "supervisor_tasks.cli", "run", *words, *flags]
    running = grid.processes.start(name, argv, env=given, cwd=cwd)
    try:
        yield running
    finally:
        grid.processes.stop(running, PATIENCE_S)


def child(fleet: Running, name: str) -> psutil.Process | None:
    """The process of the fleet of that name, which its arguments tell."""
    process = fleet.process()
    words = {"callbacks": "grpc_callbacks", "metrics": "metrics"}.get(name, name)
    found = [] if process is None else children(process)
    commands = asked(found, psutil.Process.cmdline)
    return next((one for one, command in commands.items() if words in command), None)


def told(grid: Grid, name: str = "fleet") -> list[dict[str, Any]]:
    """The lines of the merged log; a last one that has not ended is left out. Each is
    an object of JSON.
    """
    *lines, _ = (grid.processes.logs / f"{name}.log").read_text().split("\n")
    return [json.loads(line) for line in lines]


def wait_for_ends(
    processes: Sequence[psutil.Process], patience_s: float
) -> list[psutil.Process]:
    """Those of the processes that have not ended after a while. One whose new parent has
    not asked for its status yet has ended.
    """

    def left() -> list[psutil.Process]:
        return [one for one in processes if is_alive(one)]

    with suppress(TimeoutError):
        wait_until(lambda: not left(), "the processes to end", patience_s, 0.1)
    return left()


def settles(grid: Grid) -> ChainStatus:
    job_id = grid.submit_script(grid.new_customer(), "#!/bin/bash\nhostname\n")
    return wait_for_end(grid, job_id).status


def test_run_fleet__flags_and_variables__a_job_ends_and_a_killed_worker_starts_again(
    grid: Grid, fleet: Running
) -> None:
    wait_until(
        lambda: all(child(fleet, name) for name in FLEET),
        "the whole fleet",
        PATIENCE_S,
        0.1,
    )
    assert settles(grid) is ChainStatus.FINISHED
    worker = child(fleet, "worker")
    assert worker is not None
    worker.kill()
    ended = {
        "event": "process_ended",
        "process": "worker",
        "status": -9,
        "starts_again_in_s": 1,
    }
    wait_until(
        lambda: any(ended.items() <= line.items() for line in told(grid)),
        "the line",
        PATIENCE_S,
        0.1,
    )
    assert settles(grid) is ChainStatus.FINISHED
    assert {str(line.get("process")) for line in told(grid)} >= {
        "migrate",
        "worker",
        "beat",
        "callbacks",
        "metrics",
    }
    process = fleet.process()
    assert process is not None
    left = children(process)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: fleet.process() is None, "the fleet to end", PATIENCE_S, 0.1)
    assert [one for one in left if is_alive(one)] == []


def test_run_fleet__each_setting_as_the_go_programs_flag__a_job_ends(
    grid: Grid,
) -> None:
    """The unit file of the Go program's site: its flags with the keys, and the
    variables that the guide names beside them.
    """
    needed = {"DATABASE_URL", "BROKER_URL", "SLURM_SSH_KNOWN_HOSTS"}
    assert needed <= set(grid.environment)
    assert needed.isdisjoint(GO_FLAGS)
    flags = go_flags(grid.environment)
    assert grid.environment["ETH_PRIVATE_KEY"] in flags
    assert grid.environment["SLURM_SSH_PRIVATE_KEY"] in flags
    flags += ["--broker.url", grid.environment["BROKER_URL"]]  # it has no password
    flags += ["--flower.basic.auth", "operator:correct-horse"]
    with started(grid, *flags, name="go", without=GO_FLAGS, as_flags=()) as running:
        there = partial(child, running)
        wait_until(
            lambda: running.process() is None or all(map(there, FLEET)),
            "the whole fleet",
            PATIENCE_S,
            0.1,
        )
        assert all(map(there, FLEET)), (grid.processes.logs / "go.log").read_text()
        assert settles(grid) is ChainStatus.FINISHED
        lines = told(grid, "go")
    assert {str(line.get("process")) for line in lines} >= {
        "worker",
        "beat",
        "callbacks",
        "metrics",
    }
    assert not [
        line
        for line in lines
        if line["event"] in ("process_ended", "variable_not_known", "fleet_ended")
    ]
    (warned,) = [
        line for line in lines if line["event"] == "secret_on_the_command_line"
    ]
    assert (
        warned["found"] == "ETH_PRIVATE_KEY, FLOWER_BASIC_AUTH, SLURM_SSH_PRIVATE_KEY"
    )
    assert not any(
        grid.environment["ETH_PRIVATE_KEY"] in json.dumps(line) for line in lines
    )


def test_run_fleet__its_core_file_and_those_of_its_children__are_off(
    fleet: Running,
) -> None:
    wait_until(lambda: child(fleet, "worker") is not None, "a worker", PATIENCE_S, 0.1)
    process = psutil.Process(fleet.pid)
    assert process.rlimit(psutil.RLIMIT_CORE) == (0, 0)
    worker = child(fleet, "worker")
    limits = asked(children(process), lambda one: one.rlimit(psutil.RLIMIT_CORE))
    assert worker in limits
    assert limits == dict.fromkeys(limits, (0, 0))


def test_fleet__killed__its_children_end(grid: Grid, fleet: Running) -> None:
    wait_until(
        lambda: all(child(fleet, name) for name in FLEET),
        "the whole fleet",
        PATIENCE_S,
        0.1,
    )
    process = fleet.process()
    assert process is not None
    commands = asked(descendants(process), psutil.Process.cmdline)
    process.kill()
    left = wait_for_ends(list(commands), PATIENCE_S)
    assert left == [], [(one, commands[one]) for one in left]


def test_run_fleet__embedded__needs_no_servers_of_the_site() -> None:
    """And takes what its environment lacks from the file in its folder."""
    # whose wallet no other ledger has used
    other = Grid.start(GridOptions(block_time_s=BLOCK_TIME_S))
    state = other.folder / "embedded"
    cwd = other.folder / "started-here"
    cwd.mkdir()
    (cwd / ".env").write_text(
        f"SLURM_SSH_ADMIN_USER={other.environment['SLURM_SSH_ADMIN_USER']}\nCLUSTER_NAME=not-this-one\n"
    )
    try:
        with started(
            other,
            "--embedded",
            without=("DATABASE_URL", "BROKER_URL", "SLURM_SSH_ADMIN_USER"),
            as_flags=(),
            cwd=cwd,
            STATE_DIR=str(state),
        ) as running:
            wait_until(
                lambda: all(child(running, name) for name in FLEET),
                "the whole fleet",
                PATIENCE_S,
                0.1,
            )
            assert settles(other) is ChainStatus.FINISHED
            assert (state / "postgres").is_dir()
            (read,) = (
                line for line in told(other) if line["event"] == "settings_files_read"
            )
            assert read["files"] == [str(cwd / ".env")]
            # the environment wins
            assert read["cluster"] == other.environment["CLUSTER_NAME"]
        wait_until(
            lambda: not below(state),
            "the embedded servers to end with the fleet",
            PATIENCE_S,
            0.2,
        )
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
    assert (
        "CHAIN_POLL_S: found 'often'" in (grid.processes.logs / "wrong.log").read_text()
    )
