"""A customer reads the name of a benchmark that waits in SLURM's queue, and plants
something under that name in a folder that all users can write to.
"""

from pathlib import Path

import pytest

from benchmarks.registry import SUITE
from benchmarks.result import Reading
from tests.support.benchmark_plans import NONCE, a_plan, run_here

SECRET = "root's own\n"
NAME_IN_THE_QUEUE = f"benchmark-{NONCE}"


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A folder with the mode of /tmp."""
    folder = tmp_path / "volume"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def measured(volume: Path) -> Reading:
    """What the script finds that is submitted, run by this machine's fio."""
    plan = a_plan(volumes={"scratch": str(volume)}, ior_block_mb_per_node=2)
    return SUITE["ior"].parse(run_here(SUITE["ior"].render(plan).script), plan.nonce)


def test_benchmark__symlink_of_its_name__its_target_is_not_overwritten(
    volume: Path, tmp_path: Path
) -> None:
    target, link = tmp_path / "target", volume / NAME_IN_THE_QUEUE
    target.write_text(SECRET)
    link.symlink_to(target)
    reading = measured(volume)
    assert target.read_text() == SECRET
    assert reading.numbers["storage.scratch.write.bw.mibps"].number > 0
    assert list(volume.iterdir()) == [link]


def test_benchmark__directory_of_its_name__volume_is_measured(volume: Path) -> None:
    planted = volume / NAME_IN_THE_QUEUE
    planted.mkdir()
    (planted / "kept").touch()
    reading = measured(volume)
    assert reading.numbers["storage.scratch.write.bw.mibps"].number > 0
    assert reading.numbers["storage.scratch.read.bw.mibps"].number > 0
    assert [path.name for path in volume.rglob("*")] == [planted.name, "kept"]
