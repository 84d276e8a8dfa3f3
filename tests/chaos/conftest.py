"""A grid and its fleet for each file of this folder: what one has broken, the next does not find."""

from collections.abc import Iterator

import pytest

from devgrid.chain import Account
from devgrid.grid import Grid


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    running = Grid.start(block_time_s=0.25)
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def customer(grid: Grid) -> Account:
    return grid.new_customer()
