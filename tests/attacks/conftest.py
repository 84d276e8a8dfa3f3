"""Starts a grid and its fleet for each file of this folder, so that no attack affects
another file; or a chain or a SLURM without a grid, for a file that asks for that.
"""

from collections.abc import Iterator

import pytest

from devgrid.chain.model import Account
from devgrid.grid import Grid
from tests.support.certificate_fixtures import certificates
from tests.support.chain_fixtures import (
    chain,
    database,
    empty_database,
    processes,
    provider,
)
from tests.support.grids import served_grid
from tests.support.submission_fixtures import submission_env

__all__ = [
    "certificates",
    "chain",
    "database",
    "empty_database",
    "processes",
    "provider",
    "submission_env",
]


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    with served_grid() as running:
        yield running


@pytest.fixture(scope="module")
def customer(grid: Grid) -> Account:
    return grid.new_customer()
