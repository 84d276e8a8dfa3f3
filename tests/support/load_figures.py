"""A measured figure, and progress on stderr."""

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number and its bound."""

    name: str
    value: float
    unit: str
    bound: float
    at_least: bool = False

    @property
    def kept(self) -> bool:
        """Whether the figure keeps its bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def show(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)
