"""Every place where the world changes is marked in the source."""

import re
from pathlib import Path

from supervisor_tasks import crash_points
from supervisor_tasks.crash_points import CrashPoint

REPOSITORY = Path(__file__).parents[2]
SOURCES = [
    file
    for name in ("supervisor_tasks", "grpc_callbacks", "plugins")
    for file in (REPOSITORY / name).rglob("*.py")
]


def test_points__in_the_sources__are_each_passed_somewhere() -> None:
    text = "\n".join(
        file.read_text() for file in SOURCES if file.name != "crash_points.py"
    )
    named = set(
        re.findall(r"(?:crash_point|before|after)\(CrashPoint\.([A-Z_]+)", text)
    )
    spelt = {
        CrashPoint(value).name
        for value in re.findall(r'crash_point\("([a-z-]+)"\)', text)
    }
    assert named | spelt == {point.name for point in CrashPoint}


def test_order__of_one_place_and_one_count__is_taken_at_its_turn_and_once(
    tmp_path: Path,
) -> None:
    order = tmp_path / "order"
    order.write_text("after-sbatch 2")
    assert not crash_points._is_turn(order, "before-sbatch")
    assert not crash_points._is_turn(order, "after-sbatch")
    assert crash_points._is_turn(order, "after-sbatch")
    assert not crash_points._is_turn(order, "after-sbatch")
