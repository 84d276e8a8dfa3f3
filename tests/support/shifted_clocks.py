"""Clocks that are an hour off: that of one process of ours, or those of the whole SLURM
site.
"""

import signal
import subprocess
from pathlib import Path

from devgrid.grid import Grid
from devgrid.processes import wait_until
from tests.support.grid_assertions import slurm_of
from tests.support.live_processes import descendants, signal_each

SHIFT = Path(__file__).with_name("shifted_clock.c")
DAEMONS = ("slurmctld", "slurmd-node1", "slurmd-node2", "slurmd-node3", "slurmd-node4")


def shifted(grid: Grid, hours: int) -> dict[str, str]:
    """The environment of a process whose clock is `hours` ahead of all others (behind,
    if negative). It also resolves the grid's Linux users.
    """
    library = grid.folder / "shifted_clock.so"
    if not library.exists():
        subprocess.run(
            ["gcc", "-O2", "-shared", "-fPIC", "-o", library, SHIFT], check=True
        )
    return {
        "LD_PRELOAD": f"{library} {grid.users.environment()['LD_PRELOAD']}",
        "SHIFT_S": str(3600 * hours),
    }


def set_site_clocks(grid: Grid, hours: int) -> None:
    """Set the clocks of SLURM, its nodes and the login node ahead of ours by `hours`.
    No job may be in SLURM: its times would be wrong in SLURM itself.
    """
    config, environment = grid.folder / "sshd" / "sshd_config", shifted(grid, hours)
    ours = f'LD_PRELOAD="{grid.users.environment()["LD_PRELOAD"]}"'
    theirs = " ".join(f'{name}="{value}"' for name, value in environment.items())
    assert ours in config.read_text()
    config.write_text(config.read_text().replace(ours, theirs))
    _start_again(grid, environment)


def _start_again(grid: Grid, environment: dict[str, str]) -> None:
    for name in DAEMONS:
        grid.processes.stop(grid.processes.find(name))
    for name in DAEMONS:
        grid.processes.start_again(name, **environment)
    sshd = grid.processes.find("sshd")
    process = sshd.process()
    # a session keeps the environment that it started with
    signal_each([] if process is None else descendants(process), signal.SIGKILL)
    grid.processes.kill(sshd)
    grid.processes.start_again("sshd")
    wait_until(lambda: _all_idle(grid), "all nodes to be idle", 60.0, 0.1)


def _all_idle(grid: Grid) -> bool:
    shown = (
        slurm_of(grid)
        .run("sinfo", "--noheader", "--Node", "--format=%t")
        .stdout.split()
    )
    return shown == ["idle"] * (len(DAEMONS) - 1)
