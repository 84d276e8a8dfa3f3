"""Whether a process's loop comes round, and whether the services that it needs answer:
without threads and clocks.
"""

import json
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from plugins.probes.dependencies import OUTDATED_S, Dependencies, Dependency
from plugins.probes.progress import STALLED_AFTER_S, Progress
from supervisor_tasks.config.settings import Settings
from supervisor_tasks.messaging.queues import Queue
from supervisor_tasks.observability.probes import (
    needs_of_worker,
    pages,
    register_process,
)
from tests.support.clock import Clock

KEY_IN_URL = "https://rpc.example.org/v3/0123456789abcdef"


def away() -> None:
    raise ConnectionRefusedError(f"found nothing at {KEY_IN_URL}")


def ignored(*_: object) -> None:
    """Nothing is logged."""


def asked(
    *dependencies: Dependency, clock: Callable[[], float] | None = None
) -> Dependencies:
    asking = Dependencies(*dependencies, log_failure=ignored, clock=clock or Clock())
    for dependency in dependencies:
        asking.ask(dependency)
    return asking


def read(
    path: str, loop: Progress, dependencies: Dependencies
) -> tuple[HTTPStatus, Any]:
    page = pages(loop, dependencies, CollectorRegistry())[path]()
    return page.status, json.loads(page.body)


def test_ask__service_that_does_not_answer__is_logged_once_each_time() -> None:
    logged = list[str]()
    answers: list[Callable[[], object]] = [away, away, int, away, away]
    database = Dependency("database", lambda: answers.pop(0)())
    asking = Dependencies(
        database,
        log_failure=lambda name, error: logged.append(f"{name}: {error}"),
        clock=Clock(),
    )
    for said in (1, 1, 1, 2, 2):
        asking.ask(database)
        assert len(logged) == said
    assert set(logged) == {f"database: found nothing at {KEY_IN_URL}"}


def test_livez__loop_that_comes_round__is_alive_to_the_last_second() -> None:
    clock = Clock()
    loop = Progress(clock)
    clock.now_s += STALLED_AFTER_S
    assert read("/livez", loop, asked())[0] == HTTPStatus.OK
    clock.now_s += 0.1
    status, said = read("/livez", loop, asked())
    assert status == HTTPStatus.SERVICE_UNAVAILABLE
    assert said == {"alive": False, "loop_age_s": 15.1, "expected_within_s": 15.0}
    loop.completed()
    assert read("/livez", loop, asked())[0] == HTTPStatus.OK


def test_livez__process_that_ends__is_alive_and_not_ready() -> None:
    clock = Clock()
    loop = Progress(clock)
    loop.end()
    clock.now_s += 600
    assert read("/livez", loop, asked())[0] == HTTPStatus.OK
    status, said = read("/readyz", loop, asked())
    assert (status, said["ending"]) == (HTTPStatus.SERVICE_UNAVAILABLE, True)


def test_readyz__each_services_state__is_told_without_its_message() -> None:
    loop = Progress(Clock())
    status, said = read(
        "/readyz",
        loop,
        asked(Dependency("database", away), Dependency("broker", lambda: None)),
    )
    assert status == HTTPStatus.SERVICE_UNAVAILABLE
    assert said["dependencies"]["database"] == {
        "ok": False,
        "required": True,
        "error": "ConnectionRefusedError",
        "asked_ago_s": 0.0,
    }
    assert said["dependencies"]["broker"]["ok"]
    assert "0123456789abcdef" not in json.dumps(said)


def test_readyz__service_that_is_not_required__is_shown_and_may_be_away() -> None:
    dependencies = asked(
        Dependency("database", lambda: None), Dependency("broker", away, required=False)
    )
    status, said = read("/readyz", Progress(Clock()), dependencies)
    assert (status, said["dependencies"]["broker"]["ok"]) == (HTTPStatus.OK, False)


@pytest.mark.parametrize(
    ("passed_s", "ready"), [(OUTDATED_S, True), (OUTDATED_S + 0.1, False)]
)
def test_readyz__service_that_hangs__is_no_answer(passed_s: float, ready: bool) -> None:
    clock = Clock()
    dependencies = asked(Dependency("database", lambda: None), clock=clock)
    clock.now_s += passed_s
    assert dependencies.ready is ready


@pytest.mark.parametrize(
    ("holds_loop", "status"),
    [(True, HTTPStatus.OK), (False, HTTPStatus.SERVICE_UNAVAILABLE)],
)
def test_livez__loop_that_waits_for_a_service__is_alive(
    holds_loop: bool, status: HTTPStatus
) -> None:
    clock = Clock()
    loop = Progress(clock)
    clock.now_s += 600
    dependencies = asked(Dependency("broker", away, holds_loop=holds_loop))
    assert read("/livez", loop, dependencies)[0] == status


def test_readyz__before_the_first_answer__is_not_ready() -> None:
    assert not Dependencies(
        Dependency("database", lambda: None), log_failure=ignored
    ).ready


def test_metrics__of_every_process__tell_its_loop_and_its_services() -> None:
    clock, registry = Clock(), CollectorRegistry()
    loop = Progress(clock)
    clock.now_s += 3
    dependencies = asked(
        Dependency("database", lambda: None), Dependency("broker", away)
    )
    register_process(registry, "main", "beat", loop, dependencies)
    lines = pages(loop, dependencies, registry)["/metrics"]().body.decode().splitlines()
    marked = next(
        line
        for line in lines
        if line.startswith('supervisor_loop_timestamp_seconds{cluster="main"}')
    )
    assert time.time() - float(marked.split()[-1]) == pytest.approx(3.0, abs=1.0)
    assert 'supervisor_dependency_up{cluster="main",dependency="database"} 1.0' in lines
    assert 'supervisor_dependency_up{cluster="main",dependency="broker"} 0.0' in lines
    assert any(line.startswith("process_resident_memory_bytes") for line in lines)


@pytest.mark.parametrize(
    ("served", "needed"),
    [
        ({Queue.DEFAULT}, {"database", "broker"}),
        ({Queue.CHAIN}, {"database", "broker", "chain"}),
        ({Queue.BENCHMARK}, {"database", "broker", "login node"}),
        (set(Queue), {"database", "broker", "chain", "login node"}),
    ],
)
def test_worker__needs__what_its_queues_work_with(
    served: set[Queue], needed: set[str]
) -> None:
    settings = Settings.model_validate(
        {
            "database_url": "postgresql://db.example.org/ledger",
            "broker_url": "redis://broker.example.org",
            "slurm_ssh_address": "login.example.org:22",
        }
    )
    assert {
        dependency.name for dependency in needs_of_worker(settings, served)
    } == needed


def test_worker__over_slurmrestd__needs_that_and_no_login_node() -> None:
    given = {
        "database_url": "postgresql://db.example.org/ledger",
        "broker_url": "redis://broker.example.org",
    }
    given |= {
        "slurm_transport": "rest",
        "slurmrestd_url": "https://slurm.example.org:6820",
    }
    needed = needs_of_worker(Settings.model_validate(given), {Queue.SLURM})
    assert {dependency.name for dependency in needed} == {
        "database",
        "broker",
        "slurmrestd",
    }
