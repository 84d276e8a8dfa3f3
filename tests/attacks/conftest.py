"""A grid and its fleet for each file of this folder: an attack leaves nothing behind for the next one."""

from collections.abc import Iterator

import pytest

from devgrid.chain import Account
from devgrid.grid import Grid

# anvil strands nonces now and then when it mines each transaction at once
BLOCK_TIME_S = 0.25


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    running = Grid.start(block_time_s=BLOCK_TIME_S)
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def customer(grid: Grid) -> Account:
    return grid.new_customer()
