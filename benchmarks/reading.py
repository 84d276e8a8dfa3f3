"""What a benchmark's output says."""

from collections.abc import Mapping
from dataclasses import dataclass, field


class UnreadableOutputError(Exception):
    """The output holds no measurement that can be believed; the message says what was found and what was expected.

    The same output will never say more: only another run may.
    """


@dataclass(frozen=True, slots=True)
class Measured:
    """A number above zero, and its unit."""

    number: float
    unit: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read, by the keys of labels (interfaces.md section 5).

    `left_out` names the labels that this benchmark would have but did not measure this time, with the reason; a program that
    the node lacks is no failure of the cluster. `notes` say how the numbers came about where that is not as usual. `tool` is
    the name and version of the program, where it printed them.
    """

    numbers: Mapping[str, Measured] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tool: str = ""

    @property
    def empty(self) -> bool:
        """Whether nothing at all was measured."""
        return not (self.numbers or self.words)
