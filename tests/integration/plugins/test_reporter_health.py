"""What the reporter tells an orchestrator: /livez, /readyz and /metrics."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from devgrid import REPOSITORY
from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import Processes, wait_until
from devgrid.state_folder import private_processes
from plugins.probes.progress import STALLED_AFTER_S
from tests.support.health_pages import answer, ask, dependencies
from tests.support.holding import main_thread_held
from tests.support.refusals import reasons
from tests.support.spool_env import events, new_spool, serving, start_reporter, write

pytestmark = pytest.mark.slow  # retries that last

TAKEN = 2  # the status of a process whose settings are wrong


@pytest.fixture
def processes() -> Iterator[Processes]:
    with private_processes() as mine:
        yield mine


@pytest.fixture
def spool(processes: Processes) -> Path:
    return new_spool(processes)


@pytest.fixture
def health() -> int:
    """The port of the reporter's pages."""
    return free_port()


def start(processes: Processes, spool: Path, port: int, health: int) -> None:
    start_reporter(
        processes,
        spool,
        port,
        HEALTH_ADDRESS=f"127.0.0.1:{health}",
        CLUSTER_NAME="here",
    )


def wait_until_ready(health: int) -> None:
    wait_until(
        lambda: ask(health, "readyz")[0] == 200, "the reporter to be ready", 60.0
    )


def wait_until_alive(health: int) -> None:
    """At once, unless the machine left its loop without a core."""
    wait_until(lambda: ask(health, "livez")[0] == 200, "the loop to go on", 30.0)


def test_reporter__at_work__is_alive_and_ready_and_counts(
    processes: Processes, spool: Path, health: int
) -> None:
    with serving() as (supervisor, port):
        supervisor.always[2] = grpc.StatusCode.NOT_FOUND
        start(processes, spool, port, health)
        wait_until_ready(health)
        wait_until_alive(health)
        wait_until(
            lambda: (
                {name for name, found in dependencies(health).items() if found["ok"]}
                == {"spool", "supervisor"}
            ),
            "the reporter to reach all that it needs",
            60.0,
        )
        for job in (1, 2):
            write(spool, job, "end")
        wait_until(lambda: not events(spool), "the events to be delivered", 60.0)
        counted = [
            f'supervisor_reporter_events_total{{cluster="here",outcome="{outcome}"}} 1'
            for outcome in ("delivered", "rejected")
        ]
        wait_until(  # an event is counted a moment after its file is put aside
            lambda: set(counted) <= set(ask(health, "metrics")[1].splitlines()),
            "the events to be counted",
            60.0,
        )
        reached = 'supervisor_dependency_up{cluster="here",dependency="supervisor"} 1'
        wait_until(
            lambda: reached in ask(health, "metrics")[1].splitlines(),
            "the supervisor to be reached",
            60.0,
        )
        page = answer(health, "metrics")[1]
        assert any(
            line.startswith(
                'supervisor_build_info{cluster="here",process="reporter",version='
            )
            for line in page.splitlines()
        )
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=page, capture_output=True, text=True
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
        # its question is no heartbeat
        assert "plugins.reporter" not in list(supervisor.health_asked)[:1]


def test_reporter__supervisor_is_away__is_alive_and_not_ready(
    processes: Processes, spool: Path, health: int
) -> None:
    port = free_port()
    write(spool, 1, "end")
    start(processes, spool, port, health)
    wait_until(
        lambda: (
            dependencies(health).get("supervisor", {}).get("error")
            not in (None, "not asked yet")
        ),
        "the first answer",
        60.0,
    )
    assert answer(health, "readyz")[0] == 503
    wait_until_alive(health)
    wait_until(
        lambda: (
            'supervisor_reporter_waiting_events{cluster="here"} 1'
            in ask(health, "metrics")[1]
        ),
        "the event",
        60.0,
    )
    with serving(port):
        wait_until_ready(health)


def test_reporter__spool_is_away__is_alive_and_not_ready(
    processes: Processes, spool: Path, health: int
) -> None:
    with serving() as (_, port):
        start(processes, spool, port, health)
        wait_until_ready(health)
        aside = spool.rename(spool.with_name("aside"))
        wait_until(
            lambda: dependencies(health).get("spool", {}).get("ok") is False,
            "the reporter to miss its spool",
            60.0,
        )
        wait_until_alive(health)
        aside.rename(spool)
        wait_until_ready(health)


def test_reporter__loop_is_stalled__is_not_alive_until_it_goes_on(
    processes: Processes, spool: Path, health: int
) -> None:
    with serving() as (_, port):
        start(processes, spool, port, health)
        wait_until_ready(health)
        with main_thread_held(
            processes, "reporter", lambda: ask(health, "livez")[0] != 0
        ):
            wait_until(
                lambda: ask(health, "livez")[0] == 503,
                "livez to fail",
                STALLED_AFTER_S + 10,
            )
        wait_until_alive(health)


def test_reporter__asked_to_end__stops_to_answer(
    processes: Processes, spool: Path, health: int
) -> None:
    with serving() as (_, port):
        start(processes, spool, port, health)
        wait_until_alive(health)
        reporter = processes.find("reporter")
        processes.kill(reporter, signal.SIGTERM)
        assert reporter.process() is None
        assert ask(health, "livez")[0] == 0


def test_reporter__address_is_taken__ends_with_a_line(spool: Path) -> None:
    with serving() as (_, port):
        options = [
            "--spool",
            str(spool),
            "--supervisor",
            f"127.0.0.1:{port}",
            "--health",
            f"127.0.0.1:{port}",
        ]
        argv = [sys.executable, "-m", "plugins.reporter", *options]
        ended = subprocess.run(
            argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=deadline(60)
        )
    assert ended.returncode == TAKEN
    (reason,) = reasons(ended.stderr)
    assert reason.startswith(f"--health: found '127.0.0.1:{port}'; expected a free")
    assert "Traceback" not in ended.stderr
