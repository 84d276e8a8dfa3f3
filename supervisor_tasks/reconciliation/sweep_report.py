"""What a sweep notes about itself while it runs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from supervisor_tasks.errors import SupervisorError

MAX_UNANSWERED_QUESTIONS = 3  # questions without an answer: each may take half a minute
MAX_TEXT_CHARS = 500
HISTORY_SIDE = "history"  # the logs of old blocks


@dataclass(slots=True)
class ReconciliationReport:
    """What a sweep reports about itself."""

    why: str
    seconds: dict[str, float] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    stale: dict[str, int] = field(default_factory=dict)
    cancelled: int = 0
    not_cancelled: dict[str, str] = field(default_factory=dict)  # by SLURM id: why
    left_to_cancel: int = 0
    more: bool = False

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Measure how long a part takes."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = round(time.monotonic() - began_s, 3)

    @contextmanager
    def asking(self, side: str) -> Iterator[None]:
        """Treat a side that does not answer, or not as it should, as unseen. The sweep
        still compares the others.
        """
        with self.timed(side):
            try:
                yield
            except SupervisorError as error:
                self.unseen[side] = str(error)[:MAX_TEXT_CHARS]
