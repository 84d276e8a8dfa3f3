"""What a command prints: tables for people, JSON for programs. What strangers wrote is shown and not obeyed."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from supervisor_tasks.logs import cleaned
from supervisor_tasks.redaction import hiding

WIDE = 200  # columns where there is no terminal


class Shown:
    """Prints without these secrets."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._hide = hiding(secrets)

    def json(self, document: Any) -> None:
        """One document; its ASCII holds no character that a terminal obeys."""
        click.echo(json.dumps(cleaned(_plain(document), self._hide), indent=2))

    def rows(self, title: str, rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
        """Rows as either."""
        if as_json:
            self.json(list(rows))
        else:
            self.table(title, rows)

    def table(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows for people; columns in which nothing is are left out."""
        if not rows:
            click.echo(f"{title}: none")
            return
        columns = [name for name in rows[0] if any(row[name] not in (None, "", {}) for row in rows)]
        table = Table(title=self._text(title), title_justify="left", box=None)
        for name in columns:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(self._text(row[name]) for name in columns))
        self._print(table)

    def facts(self, title: str, facts: Mapping[str, Any]) -> None:
        """One thing, a line a fact."""
        table = Table(title=self._text(title), title_justify="left", box=None, show_header=False)
        table.add_column("name")
        table.add_column("value", overflow="fold")
        for name, value in facts.items():
            table.add_row(self._text(name), self._text(value))
        self._print(table)

    def _text(self, value: Any) -> Text:
        """Text is no markup."""
        clean = cleaned(_plain(value), self._hide)
        if clean is None:
            return Text("")
        return Text(
            clean if isinstance(clean, str) else json.dumps(clean) if isinstance(clean, dict | list) else str(clean)
        )

    def _print(self, table: Table) -> None:
        console = Console(soft_wrap=False)
        if not console.is_terminal:
            console = Console(width=WIDE)
        console.print(table)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone().isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value
