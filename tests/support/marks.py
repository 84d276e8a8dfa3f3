"""Tests, and parameters of tests, that a run leaves out."""

from collections.abc import Callable
from typing import Any

import pytest


def in_chaos(*values: Any, id: str | None = None) -> Any:
    """A parameter that only `make chaos` runs, and `make attacks` in its folder. `make
    test` runs similar ones.
    """
    return pytest.param(*values, marks=pytest.mark.chaos, id=id)


def leave_out(
    config: pytest.Config,
    items: list[pytest.Item],
    is_left_out: Callable[[pytest.Item], bool],
) -> None:
    """Take tests out of `items`, and tell pytest that they are deselected."""
    kept, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (left_out if is_left_out(item) else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept
