"""Whether a process must end because its main loop has stalled: without threads and clocks."""

from collections.abc import Callable

import pytest

from plugins.probes.dependencies import Dependencies, Dependency
from plugins.probes.progress import Progress
from supervisor_tasks.observability.loop_watchdog import (
    CHECK_EVERY_S,
    CONFIRMING_CHECKS,
    ENDED_AFTER_S,
    LoopWatchdog,
)
from tests.support.clock import Clock


def away() -> None:
    raise ConnectionRefusedError


def answers() -> None:
    """The service answers."""


def asked(
    clock: Clock, check: Callable[[], None], *, holds_loop: bool = True
) -> Dependencies:
    dependency = Dependency("broker", check, holds_loop=holds_loop)
    dependencies = Dependencies(dependency, log_failure=lambda *_: None, clock=clock)
    dependencies.ask(dependency)
    return dependencies


def looks_until_end(
    clock: Clock, loop: Progress, dependencies: Dependencies, number: int
) -> list[bool]:
    watchdog = LoopWatchdog(loop, dependencies)
    found = list[bool]()
    for _ in range(number):
        found.append(watchdog.is_stalled())
        clock.now_s += CHECK_EVERY_S
        for each in dependencies._dependencies:
            dependencies.ask(each)
    return found


@pytest.mark.parametrize(
    ("check", "holds_loop", "ends"),
    [(answers, True, True), (away, True, False), (away, False, True)],
    ids=["services answer", "a service that holds it is away", "another one is away"],
)
def test_is_stalled__no_round__ends_after_a_minute_unless_a_service_is_away(
    check: Callable[[], None], holds_loop: bool, ends: bool
) -> None:
    clock = Clock()
    dependencies = asked(clock, check, holds_loop=holds_loop)
    within = int(ENDED_AFTER_S / CHECK_EVERY_S) + CONFIRMING_CHECKS
    found = looks_until_end(clock, Progress(clock), dependencies, within)
    assert found == [False] * (within - 1) + [ends]


def test_is_stalled__process_was_suspended_for_an_hour__goes_on() -> None:
    clock = Clock()
    loop, dependencies = Progress(clock), asked(clock, answers)
    watchdog = LoopWatchdog(loop, dependencies)
    clock.now_s += 3600
    dependencies.ask(dependencies._dependencies[0])
    assert not watchdog.is_stalled()
    loop.completed()
    clock.now_s += CHECK_EVERY_S
    assert not watchdog.is_stalled()
    clock.now_s += ENDED_AFTER_S
    dependencies.ask(dependencies._dependencies[0])
    assert not watchdog.is_stalled(), "the first check of a row"


def test_is_stalled__process_was_asked_to_end__ends_by_itself() -> None:
    clock = Clock()
    loop, dependencies = Progress(clock), asked(clock, answers)
    loop.end()
    assert not any(looks_until_end(clock, loop, dependencies, 100))
