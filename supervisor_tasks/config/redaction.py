"""Texts without secrets: config/logging.py hides them in every log line. Pure.

A long secret is hidden everywhere. A short one can be a part of many other words, so it
is hidden only where it is a whole word; one character is no secret.
"""

import re
from collections.abc import Callable, Iterable

LONG = 8  # characters
LEAST = 2

Hide = Callable[[str], str]


def hiding(secrets: Iterable[str], instead: str = "[redacted]") -> Hide:
    """Return a function that hides these secrets in a text; the longest first, because
    one can be part of another.
    """
    hidden = {secret for secret in secrets if len(secret) >= LEAST}
    if not hidden:
        return str
    longest_first = sorted(hidden, key=lambda secret: (-len(secret), secret))
    pattern = re.compile("|".join(map(_pattern, longest_first)))
    return lambda text: pattern.sub(instead, text)


def _pattern(secret: str) -> str:
    """Return the secret's pattern. A short secret must be a whole word; a sign such as
    / at its end ends the word.
    """
    escaped = re.escape(secret)
    if len(secret) >= LONG:
        return escaped
    pattern = escaped
    if secret[0].isalnum():
        pattern = r"(?<![^\W_])" + pattern
    if secret[-1].isalnum():
        pattern += r"(?![^\W_])"
    return pattern
