"""All commands of the operator, as typer has them."""

from collections.abc import Iterator
from typing import Any

import typer

from supervisor_tasks.cli.app import app


def _commands() -> Iterator[tuple[str, Any]]:
    """Each command that does something, with its words."""
    root: Any = typer.main.get_command(app)
    context = root.make_context("supervisor", [], resilient_parsing=True)
    yield from _below(root, context, "")


def _below(group: Any, context: Any, words: str) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from _below(command, context, f"{words}{name} ")
        else:
            yield f"{words}{name}", command


COMMANDS = dict(_commands())  # by their words


def commands_with(parameter: str) -> list[str]:
    """The words of the commands that have a parameter of this name."""
    found = []
    for words, command in COMMANDS.items():
        if parameter in {known.name for known in command.params}:
            found.append(words)
    return found
