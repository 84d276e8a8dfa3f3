"""Which endpoint is healthy: by its chain, and by its head beside those of the others."""

import pytest

from supervisor_tasks.chain.rpc.endpoint_health import (
    BEHIND_BLOCKS,
    LOOKS_ALONE,
    MEMORY_S,
    AheadTracker,
    EndpointProbe,
    Health,
    healths,
    others_head,
)

HERE = 179188


def seen(
    head: int, chain_id: int = HERE, age_s: float = 0.0, answered: bool = True
) -> EndpointProbe:
    return EndpointProbe(answered, chain_id, head, age_s)


def test_healths__several_endpoints__are_compared_with_the_best() -> None:
    looks = [
        seen(100),
        seen(100 - BEHIND_BLOCKS),
        seen(99 - BEHIND_BLOCKS),
        seen(9999, chain_id=1),
        EndpointProbe(),
    ]
    assert healths(looks, HERE) == [
        Health.ALIVE,
        Health.ALIVE,
        Health.BEHIND,
        Health.WRONG_CHAIN,
        Health.UNKNOWN,
    ]


def test_healths__the_best_is_gone__the_other_has_to_catch_up_for_a_while() -> None:
    assert healths([seen(100, answered=False), seen(50)], HERE) == [
        Health.UNREACHABLE,
        Health.BEHIND,
    ]
    gone = seen(100, answered=False, age_s=MEMORY_S + 1)
    assert healths([gone, seen(50)], HERE) == [Health.UNREACHABLE, Health.ALIVE]


def test_healths__one_alone__is_never_behind() -> None:
    assert healths([seen(0)], HERE) == [Health.ALIVE]


FAR = BEHIND_BLOCKS + 1


@pytest.mark.parametrize(
    ("heads", "place", "others"),
    [
        ([100 + FAR, 100, 99], 0, 100),
        ([99, 100 + FAR, 100], 1, 100),
        ([100 + BEHIND_BLOCKS, 100, 99], 0, None),  # not far
        ([100 + FAR, 100], 0, None),  # word against word
        ([200, 100, 150], 0, None),  # the others are not at one
        ([100 + FAR, 100 + FAR, 100], 0, None),
    ],
)
def test_others_head__each_set_of_heads__is_known_only_where_two_or_more_are_at_one(
    heads: list[int], place: int, others: int | None
) -> None:
    assert others_head(place, [seen(head) for head in heads], HERE) == others


def test_others_head__those_of_another_chain_or_that_do_not_answer__do_not_count() -> (
    None
):
    looks = [
        seen(200),
        seen(100),
        seen(100, chain_id=1),
        seen(100, answered=False),
        seen(100, age_s=MEMORY_S + 1),
    ]
    assert others_head(0, looks, HERE) is None


def test_healths__one_implausibly_ahead__is_excluded() -> None:
    alone = AheadTracker()
    for look in range(LOOKS_ALONE):
        assert not alone.is_implausibly_ahead
        alone = alone.seen_again(100 + look)
    assert alone.is_implausibly_ahead
    liar = EndpointProbe(True, HERE, 10**9, 0.0, is_implausibly_ahead=True)
    assert healths([liar, seen(100), seen(99)], HERE) == [
        Health.AHEAD,
        Health.ALIVE,
        Health.ALIVE,
    ]
    assert not alone.seen_again(None).is_implausibly_ahead


def test_seen_again__others_stand_still__they_are_behind() -> None:
    alone = AheadTracker()
    for _ in range(2 * LOOKS_ALONE):
        alone = alone.seen_again(100)
    assert not alone.is_implausibly_ahead
