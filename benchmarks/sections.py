"""A job's output taken apart by the marks that its script printed. Pure, linear, at most 10 MB.

A mark is a line of its own: `@@NONCE begin SECTION`, `@@NONCE end SECTION EXIT_STATUS`, `@@NONCE fact KEY VALUE`,
`@@NONCE note TEXT` or `@@NONCE missing TEXT`. The nonce is the run's own. So no line that shells, containers and
programs print between and around the sections is taken for a mark.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.result import UnreadableOutputError

MAX_BYTES = 10_000_000
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)|[()][0-9A-Za-z]|[=>78cM])")
_SHOWN = 200
_LONGEST_NUMBER = 40
_LARGEST = 1e15  # above what any machine reaches in any of the units, and a sum of all rows is still a number
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Section:
    """The text between a begin and its end. `exit_status` is None if the output ends before the section does."""

    text: str
    exit_status: int | None

    @property
    def why_unusable(self) -> str:
        """A sentence about a section that did not end well; empty if it did."""
        if self.exit_status == 0:
            return ""
        ended = "did not end" if self.exit_status is None else f"ended with status {self.exit_status}"
        return f"its command {ended}: {shown(self.text)}"


@dataclass(frozen=True, slots=True)
class ScriptOutput:
    """A job's output, taken apart."""

    sections: Mapping[str, Section]
    facts: Mapping[str, str]
    notes: tuple[str, ...]
    missing: Mapping[str, str]

    def section(self, name: str) -> Section:
        """Return a section that must be there. Raises UnreadableOutputError."""
        found = self.sections.get(name)
        if found is None:
            raise UnreadableOutputError(f"no section {name}; found {', '.join(self.sections) or 'none'}")
        return found


def taken_apart(output: bytes, nonce: str) -> ScriptOutput:
    """Return the sections and marks of a job's output. Of more than 10 MB the LAST 10 are read, as results come last; a
    section whose begin is cut off begins at the cut. Raises UnreadableOutputError if no mark of this run is in it.
    """
    text = plain(output)
    mark = re.compile(rf"^@@{re.escape(nonce)} (begin|end|fact|note|missing)[ \t]+(\S[^\n]*)$", re.MULTILINE)
    sections, facts, missing = dict[str, Section](), dict[str, str](), dict[str, str]()
    notes, open_name, began = list[str](), "", 0
    for found in mark.finditer(text):
        name, _, rest = found[2].strip().partition(" ")
        if found[1] == "begin":
            if open_name:
                sections[open_name] = Section(text[began : found.start()], None)
            open_name, began = name, found.end()
        elif found[1] == "end":
            sections[name] = Section(text[began : found.start()], _status(rest))
            open_name, began = "", found.end()
        elif found[1] == "note":
            notes.append(found[2].strip())
        elif found[1] == "fact":
            facts[name] = rest
        else:
            missing[name] = rest
    if open_name:
        sections[open_name] = Section(text[began:], None)
    if not (sections or facts or missing):
        raise UnreadableOutputError(
            f"no mark of this run in {len(output)} bytes of output; it ends with: {shown(text)}"
        )
    return ScriptOutput(sections, facts, tuple(notes), missing)


def plain(output: bytes) -> str:
    """Return text without colours and other escapes, with a line feed at each line's end; of more than 10 MB the last
    10.
    """
    last = output[-MAX_BYTES:]
    if b"\x1b" in last:
        last = _ESCAPES.sub(b"", last)
    return last.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")


def shown(text: str) -> str:
    """Return the end of a text, fit for one line of a message."""
    words = " ".join(re.sub(r"[^\x20-\x7e]+", " ", text[-2 * _SHOWN :]).split())
    return words[-_SHOWN:] or "nothing"


def number(text: str, what: str) -> float:
    """Return a number above zero that can be a measurement. Raises UnreadableOutputError for NaN, zero and numbers that
    no machine reaches.
    """
    value = float(text) if len(text) <= _LONGEST_NUMBER and _NUMBER.fullmatch(text.strip(" \t")) else math.nan
    if not 0 < value <= _LARGEST:
        raise UnreadableOutputError(
            f"{what} is {shown(text[:_LONGEST_NUMBER])}; expected a number above zero, {_LARGEST:g} at most"
        )
    return value


def _status(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,3}", text.strip(), re.ASCII) else None
