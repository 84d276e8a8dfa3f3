"""How long the end of a job waits for the seconds of its earlier runs. Pure.

Accounting and the hooks may learn of a run some seconds after slurmctld has ended it.
So a few looks wait. Only looks that saw the job ended without all of its runs count: a
look that learned nothing, because the login node or slurmctld was away, is none of
them. After the last one, the most that the runs can have taken is billed.
"""

from collections.abc import Sequence

from supervisor_tasks.jobs.stalled import PATIENCE_S

AWAITED_LOOKS = 5  # the last one waits no more

# how many seconds ago each look before this one was that saw the job ended without all
# of its runs, the latest first
LooksBefore = Sequence[float]


def waits_for_answers(looks: LooksBefore) -> bool:
    """Whether this look waits, if accounting or the hooks answer without all runs."""
    return len(looks) + 1 < AWAITED_LOOKS


def waits_for_accounting(looks: LooksBefore, unclear: str) -> bool:
    """Whether this look waits for accounting. `unclear` is why accounting did not
    answer; empty if it did. Without an answer, the end waits for PATIENCE_S.
    """
    if not unclear:
        return waits_for_answers(looks)
    return not looks or looks[-1] < PATIENCE_S


def counts(looks: LooksBefore, *, answered: bool) -> bool:
    """Whether the journal counts this look, which waits. It counts only the first look
    without an answer: such looks go on for PATIENCE_S, every few seconds.
    """
    return answered or not looks
