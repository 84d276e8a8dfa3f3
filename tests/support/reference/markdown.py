"""Markdown as the documentation has it: lines of 120 characters at most."""

import re
import textwrap
from collections.abc import Iterable, Sequence

MAX_LINE_LENGTH = 120
SHORT_CODE = re.compile(r"`[^`]{1,70}`")
UNBROKEN = "\x01"  # stands for a space at which no line ends
GENERATED = "Written by `make docs` from the code: change it there."


def head(title: str, about: str) -> list[str]:
    """The beginning of a page."""
    return [f"# {title}", "", *paragraph(about), "", *paragraph(GENERATED), ""]


def paragraph(text: str) -> list[str]:
    """A paragraph, broken into lines."""
    return wrapped(text, "", "")


def item(text: str) -> list[str]:
    """An item of a list."""
    return wrapped(text, "* ", "  ")


def subitem(text: str) -> list[str]:
    """An item of a list in an item."""
    return wrapped(text, "  * ", "    ")


def wrapped(text: str, first: str, then: str) -> list[str]:
    """A text in lines. A word is never broken, nor is short code."""
    kept = SHORT_CODE.sub(
        lambda code: code[0].replace(" ", UNBROKEN), " ".join(text.split())
    )
    lines = textwrap.wrap(
        kept,
        MAX_LINE_LENGTH,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(UNBROKEN, " ") for line in lines]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table."""
    ruler = ["---"] * len(columns)
    return [f"| {' | '.join(row)} |" for row in (columns, ruler, *rows)]


def page(lines: Iterable[str]) -> str:
    """The page's text."""
    return "\n".join(lines).rstrip("\n") + "\n"
