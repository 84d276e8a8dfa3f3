"""docs/reference/cli.md: the help of the operator's command, and of each command below
it.
"""

import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress

from supervisor_tasks import cli
from tests.support.reference.markdown import head
from tests.support.reference.markdown import page as text_of

ABOUT = """What `supervisor COMMAND --help` prints. How to use the commands: [operate a fleet](../how-to/operate.md)."""
PROGRAM = "supervisor"
WIDTH = "80"
COMMANDS = re.compile(r"^Commands:\n((?:  .*\n?)+)", re.MULTILINE)


def page() -> str:
    """The page's text."""
    lines = head("The command line", ABOUT)
    with _width():
        for words, text in walk():
            lines += [
                f"## {' '.join([PROGRAM, *words])}",
                "",
                "```text",
                text.rstrip("\n"),
                "```",
                "",
            ]
    return text_of(lines)


def walk(words: Sequence[str] = ()) -> Iterator[tuple[Sequence[str], str]]:
    """The help of a command and of all commands below it, each with the words that call
    it.
    """
    text = help_of(words)
    yield words, text
    for name in commands_in(text):
        yield from walk((*words, name))


def commands_in(text: str) -> list[str]:
    """The names of the commands in a help text."""
    found = COMMANDS.search(text)
    return (
        []
        if found is None
        else re.findall(r"^  ([a-z][a-z-]*)(?:  |$)", found[1], re.MULTILINE)
    )


def help_of(words: Sequence[str]) -> str:
    """What `--help` prints."""
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        cli.main([*words, "--help"])
    return printed.getvalue()


@contextmanager
def _width() -> Iterator[None]:
    """Inside this, the width of lines is the same on each machine."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        yield
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
