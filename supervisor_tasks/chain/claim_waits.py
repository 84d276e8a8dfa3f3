"""How long jobs were claimable before they were claimed, by the clocks of the chain's blocks. Pure.

The log of a job that becomes claimable comes before the log of its claim, and may be another provider's. So the worker
remembers the last ones. A wait that began before the worker's start is not known.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from supervisor_tasks.jobs.events import ChainStatusObserved, Claimed, Event
from supervisor_tasks.jobs.model import ChainStatus, JobId

MAX_JOBS = 10_000  # jobs that are remembered


class ClaimWaits:
    """The claimable jobs of the last blocks. Threads may share it."""

    def __init__(self, most: int = MAX_JOBS) -> None:
        self._most = most
        self._since_s: OrderedDict[JobId, int] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, happened: Iterable[tuple[JobId, Event]], times_s: Mapping[int, int]) -> list[int]:
        """Read events in the chain's order, with the times of their blocks. Returns the seconds that each claim among
        them has waited, as far as they are known.
        """
        with self._lock:
            waits = [self._read(job_id, event, times_s) for job_id, event in happened]
        return [wait_s for wait_s in waits if wait_s is not None]

    def _read(self, job_id: JobId, event: Event, times_s: Mapping[int, int]) -> int | None:
        if isinstance(event, Claimed):
            since_s, now_s = self._since_s.pop(job_id, None), times_s.get(event.at[0])
            return None if since_s is None or now_s is None else now_s - since_s
        if isinstance(event, ChainStatusObserved) and event.at is not None and event.at[0] in times_s:
            if event.status is ChainStatus.META_SCHEDULED:
                self._remember(job_id, times_s[event.at[0]])
            elif event.status.cold:
                self._since_s.pop(job_id, None)
        return None

    def _remember(self, job_id: JobId, now_s: int) -> None:
        self._since_s[job_id] = now_s
        self._since_s.move_to_end(job_id)
        if len(self._since_s) > self._most:
            self._since_s.popitem(last=False)
