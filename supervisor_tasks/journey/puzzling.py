"""What SLURM says of a job that is neither waiting, nor running, nor an end that can be billed. Pure."""

from collections.abc import Iterable
from itertools import takewhile

from supervisor_tasks.slurm.listing import UNREADABLE
from supervisor_tasks.slurm.output import Seen
from supervisor_tasks.slurm.states import Phase, phase

PATIENCE_S = 3600.0  # COMPLETING lasts until the nodes are free: an epilog, and some minutes for what cannot be killed
NOT_LISTED = "not listed"
AN_OPERATOR = "look at it in SLURM, then `supervisor retry` or `supervisor settle`"


def for_the_operator(seen: Seen, looks: Iterable[tuple[str, float]]) -> str | None:
    """Why an operator is to look at the job; None as long as another look may tell more. `looks` are what SLURM showed at the
    last ones, and how many seconds ago, the latest first.
    """
    if seen.phase is not Phase.UNKNOWN:
        return None
    state, _, shown = seen.state.partition(" for ")
    if shown == UNREADABLE and phase(state) is Phase.ENDED:
        return f"SLURM has ended the job as {state}, and shows no time that it can have taken: {AN_OPERATOR}"
    puzzling = takewhile(lambda look: look[0] != NOT_LISTED and phase(look[0]) is Phase.UNKNOWN, looks)
    since_s = max((ago_s for _, ago_s in puzzling), default=0.0)
    if since_s < PATIENCE_S:
        return None
    return f"for {since_s / 60:.0f} min SLURM has shown the job in states like {seen.state}, which are no end: {AN_OPERATOR}"
