"""The crash points (supervisor_tasks/crash_points.py) for programs beside SLURM,
without the supervisor's imports.
"""

import os
from contextlib import AbstractContextManager, nullcontext


def crash_point(point: str) -> AbstractContextManager[None]:
    """Surround the code that makes the change. Imports the supervisor's package only if
    a test has set CRASH_AT.
    """
    if "CRASH_AT" not in os.environ:
        return nullcontext()
    from supervisor_tasks import crash_points

    return crash_points.crash_point(crash_points.CrashPoint(point))
