"""How long a grid waited for a core: this distinguishes a busy machine from a defect of
ours.

Linux counts for each thread how long it ran and how long it was ready to run and had to
wait (/proc/PID/task/TID/schedstat).
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from devgrid.grid import Grid

NANOSECONDS = 1e9


class Share:
    """The CPU time that the threads of a grid got since this was created, and the time
    that they waited for a core.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._before = dict(_threads(grid))

    def describe(self) -> str:
        """Both, in seconds of all threads together. A thread that has ended meanwhile
        does not count.
        """
        ran = waited = 0
        for thread, (ran_ns, waited_ns) in _threads(self._grid):
            ran_before, waited_before = self._before.get(thread, (0, 0))
            ran, waited = ran + ran_ns - ran_before, waited + waited_ns - waited_before
        return f"{ran / NANOSECONDS:.1f} s of CPU, {waited / NANOSECONDS:.1f} s of waiting for a core"


def _threads(grid: Grid) -> Iterator[tuple[str, tuple[int, int]]]:
    """Each thread with the nanoseconds that it ran and that it waited for a core."""
    for running in grid.processes.running():
        root = running.process()
        if root is None:
            continue
        for process in _with_children(root):
            yield from _threads_of(process.pid)


def _with_children(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _threads_of(pid: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """The threads of a process; none when it ends meanwhile."""
    with suppress(FileNotFoundError):
        for thread in os.scandir(f"/proc/{pid}/task"):
            schedstat = Path(thread.path, "schedstat")
            with suppress(OSError):
                ran, waited, _ = schedstat.read_text().split()
                yield str(schedstat), (int(ran), int(waited))
