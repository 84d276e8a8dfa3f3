"""Read several measurements of one job: those that can be read, and for the others the
reason why not.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from benchmarks.result import MeasuredValue, Reading, UnreadableOutputError
from benchmarks.sections import ScriptOutput, Section


@dataclass(frozen=True, slots=True)
class Part:
    """One section of the output, the labels that it gives, and the function that reads
    it (raising UnreadableOutputError).
    """

    section: str
    labels: tuple[str, ...]
    read: Callable[[Section], Mapping[str, MeasuredValue]]


def _why_missing(found: ScriptOutput, part: Part) -> str:
    """What the script printed about a part that it left out; empty if it left out
    nothing.
    """
    for key in (part.section, *part.labels):
        if key in found.missing:
            return found.missing[key]
    return ""


def collected(
    found: ScriptOutput,
    parts: Iterable[Part],
    *,
    tool: str = "",
    notes: tuple[str, ...] = (),
) -> Reading:
    """Return the reading of all parts. Raises UnreadableOutputError if none can be
    read, unless all were left out by name; a retry does not help.
    """
    numbers = dict[str, MeasuredValue]()
    left_out = dict[str, str]()
    failed = list[str]()
    for part in parts:
        section = found.sections.get(part.section)
        if section is None:
            missing = _why_missing(found, part)
            why = missing or f"the output ends before {part.section}"
            left_out |= dict.fromkeys(part.labels, why)
            if not missing:
                failed.append(why)
            continue
        try:
            numbers |= part.read(section)
        except UnreadableOutputError as error:
            left_out |= dict.fromkeys(part.labels, str(error))
            failed.append(str(error))
    if failed and not numbers:
        raise UnreadableOutputError("; ".join(dict.fromkeys(failed)))
    return Reading(numbers, left_out=left_out, notes=(*found.notes, *notes), tool=tool)
