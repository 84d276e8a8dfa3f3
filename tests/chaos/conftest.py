"""Starts a grid and its fleet for each file of this folder, so that no file sees what
another one broke.
"""

import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.options import GridOptions
from tests.chaos.artifacts import keep
from tests.support.grids import BLOCK_TIME_S

FAILURES = Path(__file__).parents[2] / "build" / "chaos"


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    # SLURM keeps the records of ended jobs: tests compare with them at their end
    running = Grid.start(GridOptions(block_time_s=BLOCK_TIME_S, min_job_age_s=86_400))
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def customer(grid: Grid) -> Account:
    return grid.new_customer()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what the grid of a failed test wrote."""
    report = yield
    grid = grid_of(getattr(item, "funcargs", {}))
    if report.failed and grid is not None:
        folder = FAILURES / re.sub(r"\W+", "-", item.name)
        keep(grid, folder)
        report.sections.append(("kept", f"logs and ledger are in {folder}"))
    return report


def grid_of(fixtures: dict[str, object]) -> Grid | None:
    """The grid that a test uses, from the first fixture that has one; None without a
    grid.
    """
    for name, attribute in (
        ("grid", None),
        ("target", "grid"),
        ("crash_grid", "grid"),
        ("twins", "first"),
    ):
        found = fixtures.get(name)
        found = getattr(found, attribute, None) if attribute else found
        if isinstance(found, Grid):
            return found
    return None
