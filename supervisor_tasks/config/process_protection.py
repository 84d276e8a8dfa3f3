"""Protects the secrets of a long-running process: no copy for its children, no core
file, no access to its memory.
"""

import ctypes
import resource

from supervisor_tasks.config.needs import Need
from supervisor_tasks.config.settings import hide_secrets

PR_SET_DUMPABLE = 4  # prctl(2)


def protect_memory(process: str, *needs: Need) -> None:
    """Remove the secrets from os.environ, so that no child gets them, and turn core
    files off.

    `process` is its name (cli/run_command.py). It deletes what it does not use. Core
    files are off for its children too. Other processes of the same user can then read
    neither its memory nor /proc/PID/environ, which still shows the environment of the
    start; root can. Raises OSError; a retry does not help.
    """
    hide_secrets(process, *needs)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE, 0)")
