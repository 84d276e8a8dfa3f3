"""What SLURM says of a job that leads to no end: neither waiting, nor running, nor an end that can be billed; or that it waits
for what does not come by itself. Pure.
"""

from collections.abc import Iterable
from itertools import takewhile

from supervisor_tasks.slurm.listing import UNREADABLE
from supervisor_tasks.slurm.output import Seen
from supervisor_tasks.slurm.states import Phase, never_begins, phase

PATIENCE_S = 3600.0  # COMPLETING lasts until the nodes are free: an epilog, and some minutes for what cannot be killed
NOT_LISTED = "not listed"
CHOSEN_BY_THE_OWNER = ("BeginTime", "Dependency")
AN_OPERATOR = "look at it in SLURM, then `supervisor retry` or `supervisor settle`"


def is_odd(seen: Seen) -> bool:
    """Whether what SLURM shows leads to no end, should it stay so."""
    return seen.phase is Phase.UNKNOWN or seen.never_begins


def for_the_operator(seen: Seen, looks: Iterable[tuple[str, float]]) -> str | None:
    """Why an operator is to look at the job; None as long as another look may tell more. `looks` are what SLURM showed at the
    last ones, and how many seconds ago, the latest first.
    """
    if not is_odd(seen):
        return None
    state, _, shown = seen.state.partition(" for ")
    if shown == UNREADABLE and phase(state) is Phase.ENDED:
        return f"SLURM has ended the job as {state}, and shows no time that it can have taken: {AN_OPERATOR}"
    since_s = max((ago_s for _, ago_s in takewhile(lambda look: _was_odd(look[0]), looks)), default=0.0)
    if since_s < PATIENCE_S:
        return None
    for_min = f"for {since_s / 60:.0f} min SLURM has"
    if seen.never_begins:
        return f"{for_min} let the job wait for what does not come by itself: {seen.shown}: {AN_OPERATOR}"
    return f"{for_min} shown the job in states like {seen.state}, which are no end: {AN_OPERATOR}"


def is_held(shown: str) -> bool:
    """Whether a look has shown (`Seen.shown`) a job that does not begin by itself, or not before a time or another job's end
    that its owner chose.
    """
    state, _, reason = shown.removesuffix(")").partition(" (")
    return phase(state) is Phase.WAITING and (never_begins(reason) or reason in CHOSEN_BY_THE_OWNER)


def _was_odd(shown: str) -> bool:
    """Of what a look has seen (`Seen.shown`)."""
    state, _, reason = shown.removesuffix(")").partition(" (")
    return never_begins(reason) or (shown != NOT_LISTED and phase(state) is Phase.UNKNOWN)
