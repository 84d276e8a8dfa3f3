"""Grids with the fleet that serves them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from devgrid.grid import Grid

# anvil strands nonces now and then when it mines each transaction at once
BLOCK_TIME_S = 0.25


@contextmanager
def served_grid(**options: Any) -> Iterator[Grid]:
    """A grid and its fleet without Flower; `options` are those of Grid.start."""
    running = Grid.start(block_time_s=BLOCK_TIME_S, **options)
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()
