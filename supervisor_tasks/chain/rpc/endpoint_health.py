"""Which of several endpoints is healthy, and when one of them alone is believed. Pure.

An endpoint is judged by its chain, and by its head beside those of the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

# a difference up to this does not count: looks are not taken at the same moment
BEHIND_BLOCKS = 5
# looks in a row with an endpoint alone far ahead of others; then the others are
# believed
LOOKS_ALONE = 30
# how long others must reach the head of an endpoint that does not answer any more
MEMORY_S = 60.0
MIN_AGREEING_ENDPOINTS = 2  # endpoints that must show what costs money if it is false
# with endpoints that do not answer; then one alone is believed. With one that is busy,
# it is BUSY_COUNTS_LESS times as long.
PATIENCE_S = 30.0


class Health(StrEnum):
    """What is known of an endpoint."""

    UNKNOWN = "unknown"
    ALIVE = "alive"
    BEHIND = "behind"
    AHEAD = "ahead"
    REJECTING = "rejects"
    UNREACHABLE = "unreachable"
    WRONG_CHAIN = "wrong chain"


@dataclass(frozen=True, slots=True)
class EndpointProbe:
    """The last look at an endpoint: whether it answered, for which chain, its head, and
    the head's age.
    """

    answered: bool | None = None  # None: never looked at
    chain_id: int = 0
    head: int = 0
    head_age_s: float = 0.0
    is_implausibly_ahead: bool = False  # see AheadTracker
    rejected: bool = False  # whether it recently rejected what others answered


def healths(seen: Sequence[EndpointProbe], chain_id: int) -> list[Health]:
    """The health of each endpoint, from the looks at all of them."""
    believed = [look for look in seen if not look.is_implausibly_ahead]
    best = max(_recent_heads(believed, chain_id), default=0)
    return [_health(look, chain_id, best) for look in seen]


def others_head(place: int, seen: Sequence[EndpointProbe], chain_id: int) -> int | None:
    """The head of the other endpoints when they agree and are far behind the endpoint
    at `place`; otherwise None. None also when fewer than two others answered: two
    endpoints alone do not show which one is right.
    """
    others = [*seen[:place], *seen[place + 1 :]]
    answered = [look for look in others if look.answered]
    heads = _recent_heads(answered, chain_id)
    if len(heads) < 2:
        return None
    best = max(heads)
    if best - min(heads) > BEHIND_BLOCKS:  # they do not agree
        return None
    if seen[place].head <= best + BEHIND_BLOCKS:
        return None
    return best


def _recent_heads(looks: Sequence[EndpointProbe], chain_id: int) -> list[int]:
    """The heads that these looks found on the chain, without those that are too old."""
    return [
        look.head
        for look in looks
        if look.chain_id == chain_id and look.head_age_s <= MEMORY_S
    ]


@dataclass(frozen=True, slots=True)
class AheadTracker:
    """How many looks in a row found an endpoint alone far ahead of the others; the
    others' head at the first of these looks, and at the last one.
    """

    looks: int = 0
    others_then: int = 0
    others_now: int = 0

    def seen_again(self, others: int | None) -> "AheadTracker":
        """The state after another look; `others` is the head of the others if they are
        far behind, else None.
        """
        if others is None:
            return AheadTracker()
        if not self.looks:
            return AheadTracker(1, others, others)
        return AheadTracker(self.looks + 1, self.others_then, others)

    @property
    def is_implausibly_ahead(self) -> bool:
        """Whether the others are believed: they advanced over LOOKS_ALONE looks. Others
        that stand still are behind.
        """
        return self.looks >= LOOKS_ALONE and self.others_now > self.others_then


def _health(look: EndpointProbe, chain_id: int, best: int) -> Health:
    if look.answered is None:
        return Health.UNKNOWN
    if not look.answered:
        return Health.UNREACHABLE
    if look.chain_id != chain_id:
        return Health.WRONG_CHAIN
    if look.is_implausibly_ahead:
        return Health.AHEAD
    if look.head < best - BEHIND_BLOCKS:
        return Health.BEHIND
    if look.rejected:
        return Health.REJECTING
    return Health.ALIVE
