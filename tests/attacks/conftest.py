"""Starts a grid and its fleet for each file of this folder, so that no attack affects
another file.
"""

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
