"""When a chain's next block is due."""

from devgrid.chain.block_producer import next_block_s


def test_next_block__in_time__keeps_the_pace() -> None:
    assert next_block_s(10.0, 0.25, 10.1) == 10.25


def test_next_block__late__at_once_and_none_is_made_up_for() -> None:
    assert next_block_s(10.0, 0.25, 17.0) == 17.0
