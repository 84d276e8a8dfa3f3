"""Callers of a grid's callbacks' port."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from devgrid.grid import Grid


@contextmanager
def stranger(grid: Grid) -> Iterator[grpc.Channel]:
    """A caller that reaches the port and has no key."""
    authority = (grid.folder / "tls" / "ca.pem").read_bytes()
    credentials = grpc.ssl_channel_credentials(authority)
    with grpc.secure_channel(
        grid.environment["PUBLIC_ADDRESS"], credentials
    ) as channel:
        yield channel
