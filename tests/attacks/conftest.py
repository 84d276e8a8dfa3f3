"""A grid and its fleet for each file of this folder: an attack leaves nothing behind for the next one."""

from collections.abc import Iterator

import pytest

from devgrid.chain.model import Account
from devgrid.grid import Grid
from tests.support.grids import served_grid


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    with served_grid() as running:
        yield running


@pytest.fixture(scope="module")
def customer(grid: Grid) -> Account:
    return grid.new_customer()
