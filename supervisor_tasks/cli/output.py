"""The output of a command: tables for people, JSON and YAML for programs. Text of
strangers cannot control the terminal.
"""

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import typer
import yaml
from rich.bar import Bar as DrawnBar
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.views import Bar, Cell, View, cells
from supervisor_tasks.config.redaction import cleaned, hiding

WIDE_COLUMNS = 200  # columns where there is no terminal, and COLUMNS names none
UNLIMITED_COLUMNS = 2000  # columns of the wide form
MAX_PLOT_COLUMNS = 120  # columns
CLEAR = "\x1b[2J\x1b[H"


class Output:
    """Prints texts, and hides these secrets in them."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._hide = hiding(secrets)
        self.color = True
        # the ledger that the command works with, once the command has printed it
        self.target = ""
        self._into: io.StringIO | None = None

    def line(self, text: str) -> str:
        """Return a text of one line without secrets and control characters."""
        return str(cleaned(text, self._hide))

    def document(self, document: Any, form: Format) -> None:
        """Print one JSON or YAML document in ASCII, without characters that control a
        terminal.
        """
        clean = cleaned(_plain(document), self._hide)
        if form is Format.YAML:
            typer.echo(
                yaml.safe_dump(clean, sort_keys=False, allow_unicode=False).rstrip()
            )
        else:
            typer.echo(json.dumps(clean, indent=2))

    def one(
        self,
        document: Mapping[str, Any],
        name: object,
        form: Format,
        show: Callable[[bool], None],
    ) -> None:
        """Print one object in a form: its document, its name, or what `show` prints; it
        gets whether the form is the wide one.
        """
        if form in (Format.JSON, Format.YAML):
            self.document(document, form)
        elif form is Format.NAME:
            typer.echo(name)
        else:
            show(form is Format.WIDE)

    def rows(
        self, view: View, rows: Sequence[Mapping[str, Any]], form: Format, now: datetime
    ) -> None:
        """Print rows in a form."""
        if form in (Format.JSON, Format.YAML):
            self.document(list(rows), form)
        elif form is Format.NAME:
            for row in rows:
                typer.echo(self.line(str(row[view.name])))
        else:
            self.table(view, rows, now, wide=form is Format.WIDE)

    def table(
        self,
        view: View,
        rows: Sequence[Mapping[str, Any]],
        now: datetime,
        *,
        wide: bool = False,
        selected: int | None = None,
    ) -> None:
        """Print rows as a table, one line a row; `selected` is the number of a row that
        stands out.
        """
        if not rows:
            self._echo(f"{view.title}: none")
            return
        columns, shown = cells(view, rows, now, wide=wide)
        table = Table(
            box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold"
        )
        for column in columns:
            table.add_column(
                column.title, no_wrap=not column.flexible, justify=_side(column.kind)
            )
        for number, row in enumerate(shown):
            table.add_row(
                *map(self._text, row), style="reverse" if number == selected else ""
            )
        self._print(table, UNLIMITED_COLUMNS if wide else None)

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Print the values of one object, one a line; a long value goes on below
        itself.
        """
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in facts.items():
            cell = _as_cell(value)
            if cell.text:
                table.add_row(name, self._linked(cell))
        self._print(table)

    def lines(self, lines: Iterable[Sequence[Cell]]) -> None:
        """Print lines of cells; the last cell of a line goes on below itself."""
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
        for row in lines:
            while len(table.columns) < len(row):
                table.add_column(no_wrap=True)
            table.add_row(*map(self._linked, row))
        if table.columns:
            table.columns[-1].no_wrap, table.columns[-1].overflow = False, "fold"
        self._print(table)

    def bars(self, bars: Sequence[Bar]) -> None:
        """Print a line for each bar: its name, a bar whose length is its part of the
        largest value, and its text.
        """
        table = Table(
            box=None,
            padding=(0, 2, 0, 0),
            pad_edge=False,
            show_header=False,
            expand=True,
        )
        table.add_column(no_wrap=True)
        table.add_column(ratio=1)
        table.add_column(no_wrap=True, justify="right")
        largest = max((bar.value for bar in bars), default=0.0)
        for bar in bars:
            length = DrawnBar(largest or 1.0, 0.0, bar.value, color="green")
            table.add_row(Text(self.line(bar.name)), length, Text(self.line(bar.text)))
        self._print(table, min(console_of(self.color).width, MAX_PLOT_COLUMNS))

    def blank(self) -> None:
        """Print an empty line."""
        self._echo("")

    def title(self, text: str) -> None:
        """Print the title of what follows."""
        self._echo(f"\n{text}")

    @contextmanager
    def captured(self) -> Iterator[list[str]]:
        """Collect what is printed within, instead of printing it: the lines are in the
        list when this ends.
        """
        lines: list[str] = []
        self._into = io.StringIO()
        try:
            yield lines
        finally:
            lines += self._into.getvalue().splitlines()
            self._into = None

    def _echo(self, text: str) -> None:
        print(text, file=self._into or sys.stdout)

    def repeated(self, show: Callable[[], None], every_s: float | None) -> None:
        """Show something once; with `every_s` again and again, on a cleared screen
        below the target, until Ctrl-C.
        """
        if every_s is None:
            show()
            return
        while True:
            if sys.stdout.isatty():
                typer.echo(
                    CLEAR + (f"{self.target}\n" if self.target else ""), nl=False
                )
            show()
            sys.stdout.flush()
            time.sleep(every_s)  # the operator gave this time

    def _linked(self, cell: Cell) -> Text:
        """Return the cell as Text. On a terminal with colours the text is a link (OSC
        8), so a long URL takes no room and is not broken; elsewhere the URL is behind
        the text.
        """
        if (
            cell.link
            and self._into is None
            and console_of(self.color).color_system is not None
        ):
            return Text(
                self.line(cell.text),
                style=Style.parse(cell.style) + Style(link=self.line(cell.link)),
            )
        return Text(self.line(cell.with_link), style=cell.style)

    def _text(self, cell: Cell) -> Text:
        """Return the cell as Text, so that rich reads no markup in it. It never takes a
        second line.
        """
        return Text(
            self.line(cell.text), style=cell.style, no_wrap=True, overflow="ellipsis"
        )

    def _print(self, table: Table, width: int | None = None) -> None:
        console = console_of(self.color, width)
        with console.capture() as captured:
            console.print(table)
        self._echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def console_of(color: bool, width: int | None = None) -> Console:
    """Return the console: as wide as COLUMNS names, or as the terminal. Colours only
    for a terminal.
    """
    if width is None:
        width = _given_width()
    return Console(
        width=width,
        soft_wrap=False,
        color_system="auto" if color else None,
        highlight=False,
    )


def _given_width() -> int | None:
    """Return the number of columns in COLUMNS, or WIDE_COLUMNS where there is no terminal; else
    None, for the terminal's width.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit():
        return int(columns)
    return None if sys.stdout.isatty() else WIDE_COLUMNS


def _side(kind: str) -> Any:
    return "right" if kind in ("number", "age", "span") else "left"


def _as_cell(value: object) -> Cell:
    if isinstance(value, Cell):
        return value
    if value is None:
        return Cell("")
    return Cell(str(value))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone().isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    return value
