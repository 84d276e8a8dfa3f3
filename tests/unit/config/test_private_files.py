"""Folders for the state of a process: which are safe, and which another user could
replace.
"""

import stat
from pathlib import Path

import pytest

from supervisor_tasks.config.private_files import StateFolderError, private_folder


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    made = tmp_path / "volume"
    made.mkdir()
    return made


@pytest.mark.parametrize("mode", [0o1777, 0o3777], ids=oct)
def test_private_folder__in_a_sticky_volume__is_closed_to_others(
    volume: Path, mode: int
) -> None:
    """A tmpfs has 1777; Kubernetes adds the group's bit to an emptyDir in memory where
    the pod has an fsGroup.
    """
    volume.chmod(mode)
    private_folder(volume / "state")
    private_folder(volume / "state")
    assert not stat.S_IMODE((volume / "state").stat().st_mode) & (
        stat.S_IWOTH | stat.S_IWGRP
    )


def test_private_folder__in_a_volume_open_to_all__is_refused(volume: Path) -> None:
    """An emptyDir on disk has 0777."""
    volume.chmod(0o777)
    with pytest.raises(StateFolderError, match="can be written by others"):
        private_folder(volume / "state")
