"""The crash points of what runs beside SLURM (supervisor_tasks/crash.py), without what the supervisor itself needs."""

import os
from contextlib import AbstractContextManager, nullcontext


def around(point: str) -> AbstractContextManager[None]:
    """The world changes in here. Only where a test has set CRASH_AT is the supervisor's own package wanted."""
    if "CRASH_AT" not in os.environ:
        return nullcontext()
    from supervisor_tasks import crash

    return crash.around(crash.Point(point))
