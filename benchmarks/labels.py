"""Readings as the strings that are registered on chain (interfaces.md section 5)."""

import re
from collections.abc import Iterable

from benchmarks.reading import Reading


def normalised(text: str) -> str:
    """Lowercase; each run of characters other than letters, digits, `.`, `_` and `-` is one `-`, and none at the ends."""
    return re.sub(r"[^a-zA-Z0-9._-]+", "-", text).strip("-").lower()


def number_text(number: float) -> str:
    """Two decimals."""
    return f"{number:.2f}"


def labels(readings: Iterable[Reading]) -> dict[str, str]:
    """The labels of some benchmarks, sorted by key. What rounds to 0.00 or normalises to nothing is no label."""
    found = dict[str, str]()
    for reading in readings:
        found |= {key: number_text(measured.number) for key, measured in reading.numbers.items()}
        found |= {key: normalised(word) for key, word in reading.words.items()}
    whole = {normalised(key): value for key, value in found.items() if value and value != number_text(0)}
    return {key: whole[key] for key in sorted(whole) if key}
