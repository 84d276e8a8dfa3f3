"""A program that starts a grid, and its cleaner."""

import os
import subprocess
import sys

from devgrid import REPOSITORY

PROGRAM = """
from devgrid.state_folder import private_processes
with private_processes() as processes:
    processes.start("sleeper", ["sleep", "600"])
"""


def test_program__ends_after_a_grid__warns_of_nothing() -> None:
    """Python's warnings of files and processes that nothing closes; at a program's end
    no test would see them.
    """
    argv = [sys.executable, "-X", "dev", "-W", "default", "-c", PROGRAM]
    ended = subprocess.run(
        argv, cwd=REPOSITORY, env=dict(os.environ), capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
