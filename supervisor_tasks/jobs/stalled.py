"""Jobs that SLURM shows in a state that leads to no end. Pure.

Such a job neither waits, nor runs, nor has an end that can be billed; or it waits for
an event that does not come by itself.
"""

from collections.abc import Iterable

from supervisor_tasks.slurm.job_states import Phase, never_begins, phase
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.squeue import UNREADABLE

# COMPLETING lasts until the nodes are free: an epilog, minutes for processes that
# cannot be killed
PATIENCE_S = 3600.0
NOT_LISTED = "not listed"
CHOSEN_BY_THE_OWNER = ("BeginTime", "Dependency")
OPERATOR_ADVICE = (
    "look at it in SLURM, then `supervisor job retry` or `supervisor job settle`"
)


def is_unexpected_state(seen: JobRecord) -> bool:
    """Whether the state that SLURM shows leads to no end if it stays."""
    return seen.phase is Phase.UNKNOWN or seen.never_begins


def stall_reason(seen: JobRecord, looks: Iterable[tuple[str, float]]) -> str | None:
    """Why an operator must look at the job; None as long as another look may show more.
    `looks` has what SLURM showed at the last looks, and how many seconds ago, the
    latest first.
    """
    if not is_unexpected_state(seen):
        return None
    state, _, shown = seen.state.partition(" for ")
    if (shown, phase(state)) == (UNREADABLE, Phase.ENDED):
        return f"SLURM has ended the job as {state}, and shows no time that it can have taken: {OPERATOR_ADVICE}"
    since_s = 0.0
    for shown_then, ago_s in looks:
        if not _was_unexpected(shown_then):
            break
        since_s = max(since_s, ago_s)
    if since_s < PATIENCE_S:
        return None
    for_min = f"for {since_s / 60:.0f} min SLURM has"
    if seen.never_begins:
        return f"{for_min} let the job wait for what does not come by itself: {seen.shown}: {OPERATOR_ADVICE}"
    return f"{for_min} shown the job in states like {seen.state}, which are no end: {OPERATOR_ADVICE}"


def is_held(shown: str) -> bool:
    """Whether a look showed (`JobRecord.shown`) a job that does not begin by itself. A
    job that waits for a time or for another job's end, as its owner chose, counts as
    held too.
    """
    state, _, reason = shown.removesuffix(")").partition(" (")
    if phase(state) is not Phase.WAITING:
        return False
    return never_begins(reason) or reason in CHOSEN_BY_THE_OWNER


def _was_unexpected(shown: str) -> bool:
    """Whether a look showed (`JobRecord.shown`) a state that leads to no end."""
    state, _, reason = shown.removesuffix(")").partition(" (")
    if never_begins(reason):
        return True
    if shown == NOT_LISTED:
        return False
    return phase(state) is Phase.UNKNOWN
