"""How long a process of a unit waits before it begins, when it ends again and again."""

import json
from pathlib import Path

import pytest

from supervisor_tasks.cli.restarts import FILE, LASTED_S, RESTART_S, wait_before_start


class Unit:
    """A unit of systemd: a clock that only waits move, and each start's wait."""

    def __init__(self, folder: Path) -> None:
        self.environment = {"RUNTIME_DIRECTORY": str(folder)}
        self.now_s = 1000.0
        self.waits_s: list[float] = []

    def sleep(self, wait_s: float) -> None:
        self.waits_s.append(wait_s)
        self.now_s += wait_s

    def start(self, then_runs_s: float) -> None:
        """Start the process, which runs for so long, and let systemd's pause pass."""
        wait_before_start("beat", self.environment, lambda: self.now_s, self.sleep)
        self.now_s += then_runs_s + RESTART_S


def test_wait_before_start__ends_again_and_again__grows_up_to_a_minute(
    tmp_path: Path,
) -> None:
    unit = Unit(tmp_path)
    for _ in range(9):
        unit.start(then_runs_s=1.0)
    assert [wait_s + RESTART_S for wait_s in unit.waits_s] == [
        4.0,
        8.0,
        16.0,
        32.0,
        60.0,
        60.0,
        60.0,
    ]


def test_wait_before_start__has_run_for_a_minute__begins_again(tmp_path: Path) -> None:
    unit = Unit(tmp_path)
    for runs_s in (1.0, 1.0, 1.0, LASTED_S):
        unit.start(runs_s)
    assert len(unit.waits_s) == 2
    unit.start(1.0)
    unit.start(1.0)
    assert len(unit.waits_s) == 2


@pytest.mark.parametrize(
    "stored",
    ["", "no JSON", "[]", '{"soon_ended": "many", "begun_s": 1}', '{"begun_s": null}'],
)
def test_wait_before_start__damaged_file__does_not_wait(
    stored: str, tmp_path: Path
) -> None:
    (tmp_path / FILE).write_text(stored)
    unit = Unit(tmp_path)
    unit.start(1.0)
    assert unit.waits_s == []
    assert json.loads((tmp_path / FILE).read_text())["soon_ended"] == 0


def test_wait_before_start__folder_is_missing__starts_all_the_same(
    tmp_path: Path,
) -> None:
    unit = Unit(tmp_path / "none")
    unit.start(1.0)
    unit.start(1.0)
    assert unit.waits_s == []
