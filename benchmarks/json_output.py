"""Read JSON that a program printed among other lines."""

import json
import re

from benchmarks.result import UnreadableOutputError
from benchmarks.sections import number, shown

_DEEPEST = 50  # levels; the deepest of the known documents has six
# These programs print some hundred. Python's reader recurses: with a raised recursion
# limit, many more end the process.
_MOST_BRACKETS = 2000


def document(text: str, program: str) -> object:
    """Return the JSON object between the first line that begins with { and the last
    that ends with }. Raises UnreadableOutputError; a retry does not help.
    """
    padded = f"\n{text}\n"
    begin, end = padded.find("\n{"), padded.rfind("}\n")
    if begin < 0 or end < begin:
        raise UnreadableOutputError(f"{program} printed no JSON; {shown(text)}")
    return _read(padded[begin : end + 1], program)


def documents(text: str, program: str) -> list[object]:
    """Return the JSON objects that are one line each. Raises UnreadableOutputError for
    a line that begins like one and is none; a retry does not help.
    """
    return [
        _read(line[0], program)
        for line in re.finditer(r"^\{[^\n]*", text, re.MULTILINE)
    ]


def number_at(value: object, what: str, *keys: str | int) -> float:
    """Return the number above zero that a document has under these keys. Raises
    UnreadableOutputError; a retry does not help.
    """
    for key in keys:
        try:
            value = value[key]  # type: ignore[index]
        except (TypeError, LookupError) as error:
            path = ".".join(map(str, keys))
            raise UnreadableOutputError(
                f"{what}: the document has no {path}"
            ) from error
    if type(value) not in (int, float):  # True and False are of a subclass of int
        raise UnreadableOutputError(
            f"{what} is {str(value)[:40]!r}; expected a number above zero"
        )
    return number(repr(value), what)


def _read(text: str, program: str) -> object:
    if _too_deep(text):
        raise UnreadableOutputError(
            f"{program} printed JSON of more than {_DEEPEST} levels: {shown(text)}"
        )
    if text.count("[") + text.count("{") > _MOST_BRACKETS:
        raise UnreadableOutputError(
            f"{program} printed JSON with more than {_MOST_BRACKETS} brackets: {shown(text)}"
        )
    try:
        return json.loads(text)
    except ValueError as error:
        raise UnreadableOutputError(
            f"{program} printed JSON that cannot be read ({type(error).__name__}): {shown(text)}"
        ) from error


def _too_deep(text: str) -> bool:
    """Whether brackets are nested too deep for json. With a raised recursion limit such
    a text ends the process (Python 3.11). Brackets in strings count too, which does no
    harm.
    """
    depth = 0
    for bracket in re.finditer(r"[\[\]{}]", text):
        if bracket[0] in "[{":
            depth += 1
        else:
            depth = max(0, depth - 1)
        if depth > _DEEPEST:
            return True
    return False
