"""What a benchmark's output shows. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field


class UnreadableOutputError(Exception):
    """The output holds no credible measurement. The message shows what was found and
    what was expected.

    Reading the same output again does not help; only another run may.
    """


@dataclass(frozen=True, slots=True)
class MeasuredValue:
    """A number above zero, and its unit."""

    number: float
    unit: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read, by the keys of labels (docs/benchmarks.md).

    `left_out` names the labels that this benchmark would have but did not measure this
    time, with the reason; a program that the node lacks is no failure of the cluster.
    `notes` explain how the numbers came about if that is unusual. `tool` is the name
    and version of the program, if it printed them.
    """

    numbers: Mapping[str, MeasuredValue] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tool: str = ""

    @property
    def empty(self) -> bool:
        """Whether nothing was measured."""
        return not (self.numbers or self.texts)
