"""How rows become cells: ids cut to what is unique, times relative, states in colour.
Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Row = Mapping[str, Any]

LEAST_ID = 10  # characters of a cut id, with its 0x
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
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

    `kind` is text, id (cut), age (of a moment), span (seconds), state (in colour),
    outcome (in the colour of the words before its colon) or number (to the right). A
    column that is `wide` is only in the wide form. A `flexible` one is cut where the
    terminal is too narrow.
    """

    title: str
    key: str
    kind: str = "text"
    wide: bool = False
    flexible: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """A list of rows as a table; `name` is the key of the value by which other commands
    name a row.
    """

    title: str
    name: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and its style; an empty style is the terminal's own. `link` is the URL of
    the thing that the text names.
    """

    text: str
    style: str = ""
    link: str = ""

    @property
    def with_link(self) -> str:
        """The text, and the link behind it unless the text has it: for a form that
        cannot make a text a link.
        """
        return self.text if self.link in self.text else f"{self.text} {self.link}"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a plot: its name, its value, which is not negative, and the value as
    text.
    """

    name: str
    value: float
    text: str


def cells(
    view: View, rows: Sequence[Row], now: datetime, *, wide: bool
) -> tuple[list[Column], list[list[Cell]]]:
    """Return the columns that are shown, and each row's cells in them.

    A column that is empty in all rows is left out, unless it is the first one.
    """
    shown = dict[Column, list[Cell]]()
    for column in view.columns:
        if column.wide and not wide:
            continue
        id_length = None if wide else _id_length(column, rows)
        column_cells = [
            _cell(column, row.get(column.key), now, id_length) for row in rows
        ]
        has_text = any(cell.text for cell in column_cells)
        if has_text or not shown:
            shown[column] = column_cells
    return list(shown), list(map(list, zip(*shown.values(), strict=True)))


def _id_length(column: Column, rows: Sequence[Row]) -> int | None:
    """Return how many characters of a column's ids are shown; None for all, and for a
    column of something else.
    """
    if column.kind != "id":
        return None
    return unique_length([str(row[column.key]) for row in rows if row.get(column.key)])


def unique_length(names: Collection[str], least: int = LEAST_ID) -> int:
    """Return how many characters tell all these names apart."""
    different, longest = set(names), max(map(len, names), default=least)
    length = least
    while length < longest and len({name[:length] for name in different}) < len(
        different
    ):
        length += 1
    return length


def _cell(column: Column, value: Any, now: datetime, id_length: int | None) -> Cell:
    if value in (None, ""):
        return Cell("")
    if column.kind == "id":
        return Cell(str(value)[:id_length])
    if column.kind == "age" and isinstance(value, datetime):
        return Cell(span((now - value).total_seconds()))
    if column.kind == "span":
        return Cell(span(float(value)))
    if column.kind in ("state", "outcome"):
        return Cell(str(value), STYLES.get(str(value).partition(":")[0], ""))
    return Cell(plain(value))


def plain(value: Any) -> str:
    """Return a value as words: a mapping as `name value`, with commas between, and not
    as JSON.
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {plain(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return str(value)


def ago(at: datetime | None, now: datetime) -> str:
    """Return how long ago a moment was; empty for none."""
    return "" if at is None else f"{span((now - at).total_seconds())} ago"


def span(duration_s: float) -> str:
    """Return a length of time in at most two units: 12s, 4m05s, 3h12m, 2d07h."""
    if duration_s < 0:
        return f"in {span(-duration_s)}"
    whole = int(duration_s)
    minutes, hours, days = whole // MINUTE_S, whole // HOUR_S, whole // DAY_S
    if whole < MINUTE_S:
        return f"{whole}s"
    if whole < HOUR_S:
        return f"{minutes}m{whole % MINUTE_S:02d}s"
    if whole < DAY_S:
        return f"{hours}h{minutes % 60:02d}m"
    if whole < 10**12:
        return f"{days}d{hours % 24:02d}h"
    return f"{whole}s"
