"""The Linux users of a grid, as a daemon with several threads sees them."""

import os
import subprocess
import sys
from pathlib import Path

from devgrid.cluster.linux_users import Users
from devgrid.machine import deadline

LAST = "user-300"

# looks names up as slurmctld's threads do, until the last user is there
LOOKUPS = f"""
import grp, pwd, sys, threading

def look_up() -> None:
    while True:
        try:
            grp.getgrgid(pwd.getpwnam({LAST!r}).pw_gid)
            return
        except KeyError:
            pass

threads = [threading.Thread(target=look_up) for _ in range(4)]
for thread in threads:
    thread.start()
print("ready", flush=True)
for thread in threads:
    thread.join()
"""

# a child that looks a name up, as slurmctld's own child does
IN_A_CHILD = """
import os, pwd

pwd.getpwuid(0)
child = os.fork()
if child == 0:
    pwd.getpwuid(0)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_add__threads_of_a_daemon_look_names_up__neither_crash_nor_hang(
    tmp_path: Path,
) -> None:
    users = Users(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", LOOKUPS],
        env={**os.environ, **users.environment()},
        stdout=subprocess.PIPE,
        text=True,
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "ready\n"
        for number in range(1, 301):
            users.add(f"user-{number}")
        try:
            assert daemon.wait(deadline(30.0)) == 0
        finally:
            daemon.kill()


def test_environment__forked_child_of_a_daemon__looks_names_up(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", IN_A_CHILD],
        env={**os.environ, **Users(tmp_path).environment()},
        check=True,
        timeout=deadline(30.0),
    )
