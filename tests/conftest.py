"""For all tests."""

import os

import pytest

from devgrid.ancestors import end_with_command
from tests.support import examples  # noqa: F401  registers the profile `quick`

pytest_plugins = ["tests.support.plugin"]

# Tests start processes while gRPC channels of their own are open. gRPC's fork handlers then run in the child, between fork and
# exec, and now and then crash it (seen with grpcio 1.85.1: a segfault of the thread event_engine).
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos", action="store_true", help="also what takes long (the marker chaos); `make chaos`")


def pytest_configure(config: pytest.Config) -> None:
    end_with_command()
    config.addinivalue_line("markers", "chaos: takes long; left out unless --chaos is given")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--chaos"):
        return
    long = [item for item in items if item.get_closest_marker("chaos")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]
