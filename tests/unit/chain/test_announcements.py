"""When a node's announcements are relied on: live, silent, cut and behind."""

import pytest

from supervisor_tasks.chain.announcements import (
    BEHIND_S,
    LATE_S,
    MAX_SILENT_S,
    NO_BLOCK,
    NOT_CONNECTED,
    Announcements,
    silent_after_s,
)


def announced(every_s: float, number: int = 10) -> Announcements:
    found = Announcements()
    found.subscribed()
    for block in range(number):
        found.head(block, block * every_s)
    return found


@pytest.mark.parametrize(
    ("gaps_s", "expected_s"),
    [
        ([], LATE_S),
        ([0.0] * 9, LATE_S),
        ([1.0] * 9, 3.0),
        ([1.0] * 8 + [3600.0], 3.0),
        ([2.0] * 9, 4.0),
        ([5.0] * 9, 7.0),
        ([12.0] * 9, 14.0),
        ([60.0] * 9, MAX_SILENT_S),
    ],
)
def test_silent_after_s__gaps_between_heads__polling_takes_over_after_2_s_more(
    gaps_s: list[float], expected_s: float
) -> None:
    assert silent_after_s(gaps_s) == expected_s


def test_why_not__before_the_first_block__is_no_trouble_and_not_relied_on() -> None:
    found = Announcements()
    assert found.why_not(0.0) == NOT_CONNECTED
    found.subscribed()
    assert found.why_not(0.0) == NO_BLOCK
    found.head(7, 1.0)
    assert found.why_not(1.0) == ""


def test_why_not__endpoints_are_ahead__polling_takes_over_until_it_has_caught_up() -> (
    None
):
    """Blocks come once a second, and the last that was announced is number 9."""
    found, last_s = announced(1.0), 9.0
    assert found.silent_in_s(last_s) == 3.0
    # two seconds after the block that was not announced
    assert found.silent_in_s(last_s + 3.0) == 0.0
    found.endpoint_head(12, last_s + 3.0)
    found.endpoint_head(13, last_s + 3.0 + BEHIND_S)
    assert found.why_not(last_s + 3.0 + BEHIND_S)
    found.head(11, last_s + 5.0)  # it has still not caught up
    found.endpoint_head(14, last_s + 5.0)
    assert found.why_not(last_s + 5.0)
    found.head(15, last_s + 6.0)
    found.endpoint_head(15, last_s + 6.0)
    assert found.why_not(last_s + 6.0) == ""


def test_why_not__the_chain_itself_is_quiet__relied_on_and_looked_at_more_often() -> (
    None
):
    found = announced(0.1)
    found.endpoint_head(9, 1.0)
    found.endpoint_head(9, 3600.0)
    assert (found.why_not(3600.0), found.silent_in_s(3600.0)) == ("", 0.0)


def test_why_not__block_announced_before_the_endpoint_has_it__is_relied_on() -> None:
    found = announced(1.0)
    found.endpoint_head(8, 9.0)
    found.endpoint_head(8, 20.0)
    assert found.why_not(20.0) == ""


def test_why_not__announces_another_chains_blocks__not_relied_on() -> None:
    found = announced(1.0)
    found.head(10**9, 10.0)
    found.endpoint_head(10, 10.0)
    found.endpoint_head(11, 10.0 + BEHIND_S)
    assert found.why_not(10.0 + BEHIND_S)


def test_why_not__disconnected__says_why_until_the_next_block() -> None:
    found = announced(1.0)
    found.disconnected("the node closed the connection")
    assert found.why_not(9.0) == "the node closed the connection"
    found.subscribed()
    found.head(30, 20.0)
    found.endpoint_head(30, 20.0)
    assert found.why_not(20.0) == ""
