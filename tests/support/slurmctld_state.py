"""slurmctld's state folder, and changes of its configuration for a while."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devgrid.cluster.slurm import Slurm


@contextmanager
def configured(slurm: Slurm, *lines: str) -> Iterator[None]:
    """Inside this, slurm.conf has these lines as well. The commands of SLURM read them;
    its daemons only when they begin or are told to.
    """
    conf = slurm.layout.folder / "slurm.conf"
    usual = conf.read_text()
    conf.write_text("\n".join([usual, *lines, ""]))
    try:
        yield
    finally:
        conf.write_text(usual)


@contextmanager
def remembering(slurm: Slurm, for_s: int) -> Iterator[None]:
    """Inside this, slurmctld forgets no job before it has been over for so long."""
    try:
        with configured(slurm, f"MinJobAge={for_s}"):
            reconfigure(slurm)
            yield
    finally:
        reconfigure(slurm)


def reconfigure(slurm: Slurm) -> None:
    """Have SLURM's daemons read slurm.conf."""
    done = slurm.run("scontrol", "reconfigure")
    assert done.returncode == 0, done.stderr


def copied(folder: Path, to: Path) -> bool:
    """Copy a state folder, and say whether that worked: slurmctld replaces files
    meanwhile, and then there is no copy.
    """
    try:
        shutil.copytree(folder, to, dirs_exist_ok=True)
    except shutil.Error:
        shutil.rmtree(to)
        return False
    return True
