"""How rows become cells: ids cut to what is unique, times relative, states in colour. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Row = Mapping[str, Any]

LEAST_ID = 10  # characters of a cut id, with its 0x
STYLES = {
    "CLAIMED": "blue",
    "READY": "blue",
    "SUBMITTING": "blue",
    "QUEUED": "cyan",
    "RUNNING": "green",
    "ENDED": "magenta",
    "REFUSED": "yellow",
    "SETTLED": "dim",
    "MINED": "green",
    "SIGNED": "blue",
    "SENT": "cyan",
    "REVERTED": "red",
    "FOREIGN": "red",
    "MEASURED": "green",
    "DONE": "green",
    "FAILED": "red",
    "PANICKED": "red",
    "FINISHED": "green",
    "CANCELLED": "yellow",
    "OUT_OF_CREDITS": "yellow",
    "parked": "red",
    "leased": "green",
    "due": "cyan",
    "waiting": "blue",
    "done": "green",
    "sent": "green",
    "failing": "red",
    "dropped": "yellow",
    "green": "green",
    "yellow": "yellow",
    "red": "red",
    "not tried": "dim",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, the key of its values, and how they are shown.

    `kind`: text, id (cut), age (of a moment), span (seconds), state (in colour), outcome (in the colour of the words
    before its colon) or number (to the right). `wide`: only
    the wide form has it. `flexible`: it is cut where the terminal is too narrow.
    """

    title: str
    key: str
    kind: str = "text"
    wide: bool = False
    flexible: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """A list of rows as a table; `name` is the key of what names a row to other commands."""

    title: str
    name: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and its style; the style is empty for the terminal's own. `link` is a URL of what the text names."""

    text: str
    style: str = ""
    link: str = ""

    @property
    def with_link(self) -> str:
        """The text, and the link behind it unless the text has it: for a form that cannot make a text a link."""
        return self.text if self.link in self.text else f"{self.text} {self.link}"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a plot: its name, its value, which is not negative, and the value as text."""

    name: str
    value: float
    text: str


def cells(view: View, rows: Sequence[Row], now: datetime, *, wide: bool) -> tuple[list[Column], list[list[Cell]]]:
    """Return the columns that are shown and, of each row, their cells. A column that is empty in all rows is left out,
    unless it is the first one.
    """
    columns = [column for column in view.columns if wide or not column.wide]
    shown = dict[Column, list[Cell]]()
    for column in columns:
        cut = _cutter(column, rows, wide)
        of_column = [_cell(column, row.get(column.key), now, cut) for row in rows]
        if not shown or any(map(_has_text, of_column)):
            shown[column] = of_column
    return list(shown), [list(line) for line in zip(*shown.values(), strict=True)]


def _has_text(cell: Cell) -> bool:
    return bool(cell.text)


def _cutter(column: Column, rows: Sequence[Row], wide: bool) -> Callable[[str], str]:
    if column.kind != "id" or wide:
        return str
    length = unique_length([str(row[column.key]) for row in rows if row.get(column.key)])
    return lambda text: text[:length]


def unique_length(names: Collection[str], least: int = LEAST_ID) -> int:
    """Return how many characters tell all these names apart."""
    different, longest = set(names), max(map(len, names), default=least)
    length = least
    while length < longest and len({name[:length] for name in different}) < len(different):
        length += 1
    return length


def _cell(column: Column, value: Any, now: datetime, cut: Callable[[str], str]) -> Cell:
    if value is None or value == "":
        return Cell("")
    if column.kind == "id":
        return Cell(cut(str(value)))
    if column.kind == "age" and isinstance(value, datetime):
        return Cell(span((now - value).total_seconds()))
    if column.kind == "span":
        return Cell(span(float(value)))
    if column.kind in ("state", "outcome"):
        return Cell(str(value), STYLES.get(str(value).partition(":")[0], ""))
    return Cell(value if isinstance(value, str) else plain(value))


def plain(value: Any) -> str:
    """Return a value as words: a mapping as `name value`, with commas between, and not as JSON."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {plain(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return str(value)


def span(seconds: float) -> str:
    """Return a length of time in at most two units: 12s, 4m05s, 3h12m, 2d07h."""
    if seconds < 0:
        return f"in {span(-seconds)}"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    for limit, unit, larger, smaller in ((3600, 60, "m", "s"), (86400, 3600, "h", "m"), (10**12, 86400, "d", "h")):
        if whole < limit:
            part = whole % unit // {60: 1, 3600: 60, 86400: 3600}[unit]
            return f"{whole // unit}{larger}{part:02d}{smaller}"
    return f"{whole}s"
