"""What a probe finds: the state of one thing, what was seen, and what mends it.
Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The state of a thing, the best first."""

    GREEN = "green"
    SKIPPED = "not tried"  # there is nothing to try, or this environment cannot
    YELLOW = "yellow"
    RED = "red"


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one thing. `mend` is the advice; it is empty if there is nothing to
    mend.
    """

    name: str
    level: Level
    found: str
    mend: str = ""


class NotTriedError(Exception):
    """A probe cannot try: something that it needs is not set, or does not answer. The
    message names it.
    """


def green(name: str, found: str) -> Finding:
    """Return a finding that needs nothing."""
    return Finding(name, Level.GREEN, found)


def yellow(name: str, found: str, mend: str) -> Finding:
    """Return a finding with which the fleet works, but not all of it, or not for
    long.
    """
    return Finding(name, Level.YELLOW, found, mend)


def red(name: str, found: str, mend: str) -> Finding:
    """Return a finding with which the fleet does not work."""
    return Finding(name, Level.RED, found, mend)


def skipped(name: str, why: str) -> Finding:
    """Return a finding of a probe that had nothing to try, or could not try it."""
    return Finding(name, Level.SKIPPED, why)


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level of these; green if there is none."""
    return max(
        (finding.level for finding in findings),
        key=list(Level).index,
        default=Level.GREEN,
    )
