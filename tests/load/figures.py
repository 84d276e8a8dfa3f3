"""What is measured, and how it is shown."""

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
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
