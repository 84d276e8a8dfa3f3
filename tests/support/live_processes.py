"""Whether a process still runs, asked while it may end."""

import psutil


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs. A zombie does not: its parent has only not reaped
    it yet.
    """
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False
