"""Grids with the fleet that serves them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from devgrid.grid import Grid
from devgrid.options import GridOptions

# anvil strands nonces now and then when it mines each transaction at once. The fleet looks at each block: at four a second, an
# idle grid takes 20 % of a core, at one a second 11 %.
BLOCK_TIME_S = 0.5


@contextmanager
def served_grid(options: GridOptions | None = None) -> Iterator[Grid]:
    """A grid and its fleet without Flower. The block time of the `options` is not used."""
    running = Grid.start(replace(options or GridOptions(), block_time_s=BLOCK_TIME_S))
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()
