"""Probes side by side: what hangs, raises or needs what is away is a finding, and holds
up nothing.
"""

import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from devgrid.machine import deadline
from supervisor_tasks.doctor import probe_runner
from supervisor_tasks.doctor.check_results import (
    Finding,
    Level,
    NotTriedError,
    green,
    yellow,
)
from supervisor_tasks.doctor.probe_runner import (
    LazyResource,
    Probe,
    error_line,
    examine,
)

HANGS = threading.Event()  # never set


def answers(_: str) -> Iterator[Finding]:
    yield green("one", "here")
    yield green("two", "here")


def hangs(_: str) -> Iterator[Finding]:
    HANGS.wait()
    yield green("never", "")


def fails(_: str) -> Iterator[Finding]:
    yield green("begun", "")
    raise OSError("first line\nsecond line")


def cannot(_: str) -> Iterator[Finding]:
    raise NotTriedError("no key here")
    yield


def test_examine__one_hangs__the_others_are_told_in_the_probes_order() -> None:
    probes = [
        Probe("slow", hangs, "restart it"),
        Probe("quick", answers, ""),
        Probe("bad", fails, "mend it"),
    ]
    begun_s = time.monotonic()
    found = examine(probes, "shared", begun_s + 0.3)
    assert time.monotonic() - begun_s < deadline(5)
    assert [one.name for one in found] == ["slow", "one", "two", "bad"]
    assert [one.level for one in found] == [
        Level.RED,
        Level.GREEN,
        Level.GREEN,
        Level.RED,
    ]
    assert "no answer within" in found[0].found
    assert found[0].mend == "restart it"
    assert (found[3].found, found[3].mend) == ("first line", "mend it")


def test_examine__the_fleet_works_without_it__its_failure_is_yellow() -> None:
    probes = [
        Probe("slow", hangs, "restart it", failed=yellow),
        Probe("bad", fails, "mend it", failed=yellow),
    ]
    found = examine(probes, "shared", time.monotonic() + 0.3)
    assert [(one.name, one.level) for one in found] == [
        ("slow", Level.YELLOW),
        ("bad", Level.YELLOW),
    ]


def test_examine__what_cannot_be_tried__is_no_failure() -> None:
    (found,) = examine([Probe("keyless", cannot, "mend it")], "", time.monotonic() + 5)
    assert found == Finding("keyless", Level.SKIPPED, "no key here")
    (empty,) = examine([Probe("nothing", lambda _: (), "")], "", time.monotonic() + 5)
    assert empty.level is Level.SKIPPED


def test_shared__several_ask__is_made_once() -> None:
    made = list[int]()

    def make() -> int:
        made.append(1)
        return 7

    shared = LazyResource("it", make, time.monotonic() + 5)
    assert [shared.get(), shared.needed(), shared.get()] == [7, 7, 7]
    assert made == [1]


def test_shared__cannot_be_made__its_own_probe_fails_and_others_are_not_tried() -> None:
    def make() -> int:
        raise OSError("refused")

    shared = LazyResource("the login node", make, time.monotonic() + 5)
    with pytest.raises(OSError, match="refused"):
        shared.get()
    with pytest.raises(NotTriedError, match="the login node does not answer"):
        shared.needed()


def test_shared__hangs__no_probe_waits_past_the_deadline() -> None:
    shared = LazyResource("it", HANGS.wait, time.monotonic() + 0.1)
    with pytest.raises(TimeoutError):
        shared.get()
    with pytest.raises(NotTriedError):
        shared.needed()


class Refusal(grpc.RpcError):
    def __str__(self) -> str:
        return "<_InactiveRpcError of RPC that terminated with:\n\tstatus ..."

    def details(self) -> str:
        return "connection refused"


def test_error_line__exceptions_of_several_kinds__is_one_line() -> None:
    assert error_line(OSError("a\nb")) == "a"
    assert error_line(KeyError()) == "KeyError"
    assert error_line(Refusal()) == "connection refused"
    refused = ConnectionRefusedError(111, "Connection refused")
    assert error_line(refused) == "Connection refused"
    assert error_line(
        OSError(
            f"HTTPConnection(host='node', port=1): Failed to establish a new connection: {refused}"
        )
    ) == ("Connection refused")


@pytest.mark.parametrize(
    ("within_s", "imports_s", "left_s"),
    [
        pytest.param(None, 2.0, 5.0, id="fast-machine"),
        pytest.param(None, 3.5, 3.5, id="slow-machine"),
        pytest.param(None, 60.0, 3.5, id="process-that-runs-for-long"),
        pytest.param(20.0, 2.0, 20.0, id="the-operator-says"),
    ],
)
def test_deadline_s__after_the_imports__leaves_time_to_answer_within_10_s(
    monkeypatch: pytest.MonkeyPatch,
    within_s: float | None,
    imports_s: float,
    left_s: float,
) -> None:
    now_s = time.monotonic()
    monkeypatch.setattr(probe_runner, "STARTED_S", now_s - imports_s)
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    assert probe_runner.deadline_s(within_s) - now_s == pytest.approx(left_s)
