"""How a name and a number are written on chain, as the grid's other providers do. Pure."""

import re


def normalised(text: str) -> str:
    """Return the text in lowercase. Each run of characters other than letters, digits,
    `.`, `_` and `-` becomes one `-`, and none stays at the ends.
    """
    return re.sub(r"[^a-zA-Z0-9._-]+", "-", text).strip("-").lower()


def number_text(number: float) -> str:
    """Return the number with two decimals."""
    return f"{number:.2f}"
