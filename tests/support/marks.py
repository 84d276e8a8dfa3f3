"""Parameters of tests that `make test` leaves out."""

from typing import Any

import pytest


def in_chaos(*values: Any, id: str | None = None) -> Any:
    """A parameter that `make chaos` tries, and `make attacks` in its folder: `make test` has others like it."""
    return pytest.param(*values, marks=pytest.mark.chaos, id=id)
