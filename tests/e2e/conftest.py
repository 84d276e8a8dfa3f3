"""A whole grid and its fleet, shared by the tests of this folder."""

from collections.abc import Iterator

import pytest

from devgrid.chain import Account
from devgrid.grid import Grid
from tests.support.grids import served_grid


@pytest.fixture(scope="session")
def grid() -> Iterator[Grid]:
    with served_grid() as running:
        yield running


@pytest.fixture(scope="session")
def customer(grid: Grid) -> Account:
    return grid.new_customer()
