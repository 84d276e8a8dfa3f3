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


@pytest.mark.parametrize(
    ("mode", "is_refused"),
    [
        pytest.param(0o755, False, id="in a closed folder"),
        pytest.param(0o777, True, id="in an open folder"),
        pytest.param(0o1777, False, id="in a sticky folder"),
    ],
)
@pytest.mark.parametrize("absolute", [True, False], ids=["absolute", "relative"])
def test_private_folder__behind_a_link__is_refused_if_others_can_replace_the_link(
    volume: Path, mode: int, is_refused: bool, absolute: bool
) -> None:
    (volume / "real").mkdir(mode=0o755)
    (volume / "links").mkdir()
    link = volume / "links" / "state"
    link.symlink_to(volume / "real" if absolute else "../real")
    (volume / "links").chmod(mode)
    if is_refused:
        with pytest.raises(StateFolderError, match="can be written by others"):
            private_folder(link / "redis")
    else:
        private_folder(link)
        private_folder(link / "redis")
