"""For all tests."""

import os
from typing import Any

import pytest
import structlog

from devgrid.ancestors import end_with_command
from tests.support import examples  # noqa: F401  registers the profiles
from tests.support.marks import leave_out

pytest_plugins = ["tests.support.plugin"]

# Tests start processes while gRPC channels of their own are open. gRPC's fork handlers
# then run in the child, between fork and exec, and now and then crash it (seen with
# grpcio 1.85.1: a segfault of the thread event_engine).
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# A logger that keeps its processors from its first use on is not seen by
# structlog.testing.capture_logs, so each test that configured the logs in this process
# would blind all later ones.
_configure = structlog.configure


def _configure_without_cache(**options: Any) -> None:
    _configure(**options | {"cache_logger_on_first_use": False})


structlog.configure = _configure_without_cache  # type: ignore[assignment]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--chaos",
        action="store_true",
        help="also what takes long (the marker chaos); `make chaos`",
    )


def pytest_configure(config: pytest.Config) -> None:
    end_with_command()
    config.addinivalue_line(
        "markers", "chaos: takes long; left out unless --chaos is given"
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    if config.getoption("--chaos"):
        return
    leave_out(config, items, lambda item: item.get_closest_marker("chaos") is not None)
