"""A job's output taken apart by the delimiter lines that its script printed. Pure,
linear, at most 10 MB.

A delimiter line is one of `@@NONCE begin SECTION`, `@@NONCE end SECTION EXIT_STATUS`,
`@@NONCE fact KEY VALUE`, `@@NONCE note TEXT` and `@@NONCE missing TEXT`. The nonce is
the run's own. So no line that shells, containers and programs print between and around
the sections is taken for one.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.result import UnreadableOutputError

MAX_BYTES = 10_000_000
_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)|[()][0-9A-Za-z]|[=>78cM])"
)
_SHOWN = 200
_LONGEST_NUMBER = 40
# above what any machine reaches in any of the units, and a sum of all rows is still a
# number
_LARGEST = 1e15
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Section:
    """The text between a begin and its end. `exit_status` is None if the output ends
    before the section does.
    """

    text: str
    exit_status: int | None

    @property
    def why_unusable(self) -> str:
        """A sentence about a section that did not end well; empty if it did."""
        if self.exit_status == 0:
            return ""
        if self.exit_status is None:
            return f"its command did not end: {shown(self.text)}"
        return f"its command ended with status {self.exit_status}: {shown(self.text)}"

    def require_usable(self, program: str) -> None:
        """Raise UnreadableOutputError, with the program's name, if the section did not
        end well; a retry does not help.
        """
        if self.why_unusable:
            raise UnreadableOutputError(f"{program}: {self.why_unusable}")


@dataclass(frozen=True, slots=True)
class ScriptOutput:
    """A job's output, taken apart."""

    sections: Mapping[str, Section]
    facts: Mapping[str, str]
    notes: tuple[str, ...]
    missing: Mapping[str, str]

    def section(self, name: str) -> Section:
        """Return a section that must be there. Raises UnreadableOutputError; a retry
        does not help.
        """
        found = self.sections.get(name)
        if found is None:
            raise UnreadableOutputError(
                f"no section {name}; found {', '.join(self.sections) or 'none'}"
            )
        return found

    def tools(self, version: re.Pattern[str]) -> str:
        """Return the tools that name themselves in their sections: the pattern's group,
        each text once, in the order of the output.
        """
        tools = dict[str, None]()
        for section in self.sections.values():
            named = version.search("\n" + section.text)
            if named is not None:
                tools[named[1]] = None
        return ", ".join(tools)


def split_output(output: bytes, nonce: str) -> ScriptOutput:
    """Return the sections of a job's output, and what its delimiter lines say. Of a
    longer output, only the last 10 MB are read, because results come last; a section
    whose begin is cut off begins at the cut. Raises UnreadableOutputError if no
    delimiter line of this run is in it; a retry does not help.
    """
    text = plain(output)
    form = re.compile(
        rf"^@@{re.escape(nonce)} (begin|end|fact|note|missing)[ \t]+(\S[^\n]*)$",
        re.MULTILINE,
    )
    delimiters = list(form.finditer(text))
    sections = _sections(text, delimiters)
    facts, notes, missing = dict[str, str](), list[str](), dict[str, str]()
    named = {"fact": facts, "missing": missing}
    for line in delimiters:
        words = line[2].strip()
        name, _, rest = words.partition(" ")
        if line[1] == "note":
            notes.append(words)
        elif line[1] in named:
            named[line[1]][name] = rest
    if not (sections or facts or missing):
        raise UnreadableOutputError(
            f"no delimiter line of this run in {len(output)} bytes of output; it ends with: {shown(text)}"
        )
    return ScriptOutput(sections, facts, tuple(notes), missing)


def _sections(text: str, delimiters: Sequence[re.Match[str]]) -> dict[str, Section]:
    """The sections by name. One without a begin starts after the section before; one
    without an end lasts to the next.
    """
    sections = dict[str, Section]()
    open_name, began = "", 0
    for line in delimiters:
        name, _, status = line[2].strip().partition(" ")
        if line[1] == "end":
            sections[name] = Section(text[began : line.start()], _status(status))
            open_name, began = "", line.end()
        elif line[1] == "begin":
            if open_name:
                sections[open_name] = Section(text[began : line.start()], None)
            open_name, began = name, line.end()
    if open_name:
        sections[open_name] = Section(text[began:], None)
    return sections


def plain(output: bytes) -> str:
    """Return text without colours and other escapes, with a line feed at each line's
    end; of a longer output, the last 10 MB.
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
    """Return a number above zero that can be a measurement. Raises
    UnreadableOutputError for NaN, zero and numbers that no machine reaches; a retry
    does not help.
    """
    value = math.nan
    if len(text) <= _LONGEST_NUMBER and _NUMBER.fullmatch(text.strip(" \t")):
        value = float(text)
    if not 0 < value <= _LARGEST:
        raise UnreadableOutputError(
            f"{what} is {shown(text[:_LONGEST_NUMBER])}; expected a number above zero, {_LARGEST:g} at most"
        )
    return value


def _status(text: str) -> int | None:
    if re.fullmatch(r"[0-9]{1,3}", text.strip(), re.ASCII) is None:
        return None
    return int(text)
