"""plugins/README.md: its commands install SLURM's side, and again at each release."""

import re
import subprocess
from pathlib import Path

from devgrid import REPOSITORY

README = (REPOSITORY / "plugins" / "README.md").read_text()
COPIES = re.search(
    r"^plugins/build.sh build/plugins .*\n(.*? /opt/supervisor/?)(?:;|$)",
    README,
    re.MULTILINE,
)


def built(clone: Path, release: str) -> None:
    """What `plugins/build.sh build/plugins` leaves, with the release as the text of each program."""
    folder = clone / "build" / "plugins"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("supervisor-hook", "spank_supervisor.so"):
        (folder / name).write_text(release)
        (folder / name).chmod(0o755)
    for name in ("supervisor-started", "supervisor-ended"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("supervisor-hook")


def test_readme__followed_at_two_releases__the_second_is_in_force(
    tmp_path: Path,
) -> None:
    installed = tmp_path / "supervisor"
    assert COPIES is not None
    command = COPIES[1].replace("/opt/supervisor", str(installed))
    built(tmp_path, "first")
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True)
    (installed / "spool.conf").write_text("spool=/var/spool/supervisor\n")
    running = (installed / "supervisor-hook").open()  # by SLURM, during the upgrade

    built(tmp_path, "second")
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True)

    assert {file.name: file.read_text() for file in installed.iterdir()} == {
        "supervisor-hook": "second",
        "supervisor-started": "second",
        "supervisor-ended": "second",
        "spank_supervisor.so": "second",
        "spool.conf": "spool=/var/spool/supervisor\n",
    }
    assert (installed / "supervisor-ended").is_symlink()
    assert running.read() == "first"  # a loaded file is replaced and not overwritten
    running.close()
