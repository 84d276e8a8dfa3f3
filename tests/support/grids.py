"""Grids with a fleet."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from devgrid.grid import Grid
from devgrid.options import GridOptions

# anvil sometimes leaves a nonce unmined when it mines each transaction at once. The
# fleet reads each block: an idle grid takes 20 % of a core at four blocks a second, 11
# % at one.
BLOCK_TIME_S = 0.5


@contextmanager
def served_grid(options: GridOptions | None = None) -> Iterator[Grid]:
    """A grid and its fleet without Flower. The block time of the `options` is not
    used.
    """
    running = Grid.start(replace(options or GridOptions(), block_time_s=BLOCK_TIME_S))
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()
