"""Texts without secrets. Pure.

A long secret is hidden wherever it stands. A short one would be found within other words and take half of the text with it, so
it is hidden where it stands as a word of its own; one character is no secret.
"""

import re
from collections.abc import Callable, Iterable

LONG = 8  # characters
LEAST = 2

Hide = Callable[[str], str]


def hiding(secrets: Iterable[str], instead: str = "[redacted]") -> Hide:
    """What takes these secrets out of a text; the longest first, because one may be a part of another."""
    found = sorted({secret for secret in secrets if len(secret) >= LEAST}, key=lambda secret: (-len(secret), secret))
    if not found:
        return str
    pattern = re.compile("|".join(_pattern(secret) for secret in found))
    return lambda text: pattern.sub(instead, text)


def _pattern(secret: str) -> str:
    """A slash or another sign at an end of a secret is where a word ends."""
    written = re.escape(secret)
    if len(secret) >= LONG:
        return written
    begins = r"(?<![^\W_])" if secret[0].isalnum() else ""
    return begins + written + (r"(?![^\W_])" if secret[-1].isalnum() else "")
