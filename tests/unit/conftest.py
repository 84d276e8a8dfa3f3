"""Unit tests open no sockets."""

import logging
from collections.abc import Iterator

import pytest
import structlog
from pytest_socket import disable_socket


@pytest.fixture(autouse=True)
def _no_sockets() -> None:
    disable_socket(allow_unix_socket=True)


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Log as before once the test has ended."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
