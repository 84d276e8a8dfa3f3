"""How long the end of a job waits for the seconds of its earlier runs. Pure.

Accounting and the hooks may learn of a run some seconds after slurmctld has ended it.
So the end waits: a few looks for the hooks, and a minute for accounting. Only looks that
saw the job ended without all of its runs count: a look that learned nothing, because
the login node or slurmctld was away, is none of them. Afterwards the most that the runs
can have taken is billed.
"""

from collections.abc import Sequence

from supervisor_tasks.jobs.stalled import PATIENCE_S

AWAITED_LOOKS = 5  # for the hooks; the last one waits no more
# slurmctld tells slurmdbd of a run within seconds, but its queue can be long after a
# restart or under load.
ACCOUNTING_PATIENCE_S = 60.0

# how many seconds ago each look before this one was that saw the job ended without all
# of its runs, the latest first
LooksBefore = Sequence[float]


def waits_for_answers(looks: LooksBefore) -> bool:
    """Whether this look waits, if the hooks have not reported all runs."""
    return len(looks) + 1 < AWAITED_LOOKS


def waits_for_accounting(looks: LooksBefore, unclear: str) -> bool:
    """Whether this look waits for accounting. `unclear` is why accounting did not
    answer; empty if it did, without all runs. The end waits for PATIENCE_S without an
    answer, and for ACCOUNTING_PATIENCE_S with one.
    """
    if unclear:
        return not looks or looks[-1] < PATIENCE_S
    # The first look may be one without an answer, from before an outage.
    return len(looks) < 2 or looks[-2] < ACCOUNTING_PATIENCE_S


def counts(looks: LooksBefore, *, answered: bool) -> bool:
    """Whether the journal counts this look, which waits. It counts only the first look
    without an answer, and no more looks than the hooks are waited for: such looks go on
    for a minute or an hour, every few seconds.
    """
    return not looks or (answered and len(looks) < AWAITED_LOOKS - 1)
