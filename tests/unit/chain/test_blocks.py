"""Which known blocks the chain still has."""

from supervisor_tasks.chain.blocks import is_behind, last_common_block


def test_last_common_block__some_all_or_no_blocks_lost__is_the_last_unchanged_one() -> (
    None
):
    known = [(1, "a"), (2, "b"), (3, "c")]
    assert last_common_block(known, {1: "a", 2: "b", 3: "x"}) == 2
    assert last_common_block(known, {1: "x", 2: "x", 3: "x"}) is None
    assert last_common_block(known, {1: "a", 2: "b", 3: "c"}) == 3


def test_last_common_block__a_lower_block_was_lost__later_blocks_are_above_the_fork() -> (
    None
):
    known = [(1, "a"), (3, "c"), (3, "z"), (9, "d")]
    assert last_common_block(known, {1: "a", 3: "c", 9: "d"}) == 1


def test_is_behind__head_below_the_last_known_block__is_true_only_then() -> None:
    assert is_behind(2, {1: "a", 2: "b", 3: "c"})
    assert not is_behind(3, {1: "a", 2: "b", 3: "c"})
    assert not is_behind(0, {})
