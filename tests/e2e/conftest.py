"""A whole grid and its fleet for a file of this folder that starts none of its own."""

from collections.abc import Iterator

import pytest

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.options import Transport
from tests.support.grids import served_grid


@pytest.fixture(scope="module")
def transport(request: pytest.FixtureRequest) -> Transport:
    """SLURM_TRANSPORT of a grid that is started once for each way."""
    way: Transport = request.param
    return way


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    with served_grid() as running:
        yield running


@pytest.fixture(scope="module")
def customer(grid: Grid) -> Account:
    return grid.new_customer()
