"""Copies of slurmctld's state folder."""

import shutil
from pathlib import Path


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
