"""Texts without secrets and control characters: config/logging.py hides them in every
log line. Pure.

A long secret is hidden everywhere. A short one can be a part of many other words, so it
is hidden only where it is a whole word; one character is no secret.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

LONG_SECRET_CHARS = 8  # characters
MIN_SECRET_CHARS = 2

Hide = Callable[[str], str]


def hiding(secrets: Iterable[str], instead: str = "[redacted]") -> Hide:
    """Return a function that hides these secrets in a text; the longest first, because
    one can be part of another.
    """
    hidden = {secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS}
    if not hidden:
        return str
    longest_first = sorted(hidden, key=lambda secret: (-len(secret), secret))
    pattern = re.compile("|".join(map(_pattern, longest_first)))
    return lambda text: pattern.sub(instead, text)


def cleaned(value: Any, hide: Hide) -> Any:
    """Return the value without secrets and control characters, in all nested texts."""
    if isinstance(value, int | float | None):  # also a bool, which is an int
        return value
    if isinstance(value, dict):
        return {
            cleaned(str(key), hide): cleaned(entry, hide)
            for key, entry in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [cleaned(entry, hide) for entry in value]
    return visible(hide(str(value)))


def visible(text: str) -> str:
    """Escape control characters: a stranger's text must not begin a line of the log or
    move the terminal's cursor.
    """
    if text.isprintable():
        return text
    escaped = ""
    for character in text:
        if character.isprintable():
            escaped += character
        else:
            escaped += character.encode("unicode_escape").decode()
    return escaped


def _pattern(secret: str) -> str:
    """Return the secret's pattern. A short secret must be a whole word; a sign such as
    / at its end ends the word.
    """
    escaped = re.escape(secret)
    if len(secret) >= LONG_SECRET_CHARS:
        return escaped
    pattern = escaped
    if secret[0].isalnum():
        pattern = r"(?<![^\W_])" + pattern
    if secret[-1].isalnum():
        pattern += r"(?![^\W_])"
    return pattern
