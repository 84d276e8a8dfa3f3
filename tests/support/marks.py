"""Parameters of tests that `make test` leaves out."""

from typing import Any

import pytest


def in_chaos(*values: Any, id: str | None = None) -> Any:
    """A parameter that only `make chaos` runs, and `make attacks` in its folder. `make
    test` runs similar ones.
    """
    return pytest.param(*values, marks=pytest.mark.chaos, id=id)
