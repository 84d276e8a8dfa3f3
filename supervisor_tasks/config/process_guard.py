"""A process that runs for long keeps its secrets to itself: no copy for its children, no core file, no look into its memory."""

import ctypes
import resource

from supervisor_tasks.settings import Need, hide_secrets

PR_SET_DUMPABLE = 4  # prctl(2)


def guard_process(*needs: Need) -> None:
    """Take the secrets out of os.environ, so that no child gets them, and forget the keys that this process does not need.
    Core files are off for it and its children. Other processes of the same user can read neither its memory nor
    /proc/PID/environ, which goes on to show what the process was started with; root can.
    """
    hide_secrets(*needs)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE, 0)")
