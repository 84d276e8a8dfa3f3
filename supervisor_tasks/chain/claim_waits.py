"""How long jobs were claimable before they were claimed, by the clocks of the chain's
blocks. Pure.

The log of a job that becomes claimable comes before the log of its claim, and may be
another provider's. So the worker remembers the last ones. A wait that began before the
worker's start is not known.
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

    def read(
        self, events: Iterable[tuple[JobId, Event]], times_s: Mapping[int, int]
    ) -> list[int]:
        """Read events in the chain's order, with the times of their blocks. Returns the
        seconds that each claim among them has waited, as far as they are known.
        """
        waits_s = list[int]()
        with self._lock:
            for job_id, event in events:
                wait_s = self._read(job_id, event, times_s)
                if wait_s is not None:
                    waits_s.append(wait_s)
        return waits_s

    def _read(
        self, job_id: JobId, event: Event, times_s: Mapping[int, int]
    ) -> int | None:
        if isinstance(event, Claimed):
            return self._waited_s(job_id, times_s.get(event.at[0]))
        if isinstance(event, ChainStatusObserved) and event.at is not None:
            self._observe(job_id, event.status, times_s.get(event.at[0]))
        return None

    def _waited_s(self, job_id: JobId, claimed_s: int | None) -> int | None:
        """How long a job that is claimed now was claimable; None if that is not
        known.
        """
        since_s = self._since_s.pop(job_id, None)
        if since_s is None or claimed_s is None:
            return None
        return claimed_s - since_s

    def _observe(self, job_id: JobId, status: ChainStatus, mined_s: int | None) -> None:
        if mined_s is None:
            return
        if status.is_final:
            self._since_s.pop(job_id, None)
        if status is not ChainStatus.META_SCHEDULED:
            return
        self._since_s[job_id] = mined_s
        self._since_s.move_to_end(job_id)
        if len(self._since_s) > self._most:
            self._since_s.popitem(last=False)
