"""Makes foreign text fit for Postgres: what it cannot store is escaped, and what is too
long is cut.
"""

from typing import Any

MAX_TEXT_CHARACTERS = 2000  # characters of an error or of a piece of evidence


def sanitize_text(text: str) -> str:
    """A text that Postgres can store: lone surrogates and NUL characters are
    escaped.
    """
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def sanitize_and_truncate(text: str) -> str:
    """A text that Postgres can store, cut to MAX_TEXT_CHARACTERS characters."""
    return sanitize_text(text)[:MAX_TEXT_CHARACTERS]


def sanitize_optional(text: str | None) -> str | None:
    """The same of a text that may be missing: None stays None."""
    if text is None:
        return None
    return sanitize_and_truncate(text)


def sanitize_json(value: Any) -> Any:
    """A value as JSON that Postgres can store. Texts are sanitized and cut; values of
    other types become texts.
    """
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, dict):
        return {
            sanitize_and_truncate(str(key)): sanitize_json(entry)
            for key, entry in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return list(map(sanitize_json, value))
    return sanitize_and_truncate(str(value))
