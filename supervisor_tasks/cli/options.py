"""Options that many commands have, and how a noun is made."""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from supervisor_tasks.cli.exit_codes import UnusableError

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
AGE = re.compile(r"([0-9]{1,6})([smhdw])")
# of a century: all that the ledger has is younger
MAX_AGE = timedelta(days=36500)
MAX_NUMBER = 2**63 - 1  # of a row: a bigint of the ledger
ADDRESS_BEGINNING = re.compile(r"0x[0-9a-f]{0,40}")


class Format(StrEnum):
    """The forms in which a command shows what it has found."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


Output = Annotated[
    Format,
    typer.Option(
        "-o",
        "--output",
        help="The form: wide has all columns in full, name the names only.",
    ),
]
NoColor = Annotated[
    bool,
    typer.Option(
        "--no-color", help="Show no colours; the variable NO_COLOR does the same."
    ),
]
Watch = Annotated[
    float | None,
    typer.Option(
        "-w",
        "--watch",
        min=0.2,
        metavar="SECONDS",
        help="Show it again every SECONDS, until Ctrl-C.",
    ),
]
Limit = Annotated[
    int, typer.Option("--limit", min=1, max=1000, help="Show this many rows at most.")
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="AGE", help="Only what is younger: 90s, 15m, 2h, 3d or 1w."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Reason = Annotated[
    str, typer.Option("--reason", help="Why; `supervisor log` shows it.")
]
RequiredReason = Annotated[
    str,
    typer.Option(
        "--reason", help="Why; `supervisor log` and the job's timeline show it."
    ),
]


WHOLE_TEXT_CHARS = 1000  # characters: no sentence is longer


class CommandGroup(TyperGroup):
    """Commands. The help lists each with its whole sentence; click would cut it at the
    end of a line.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the names of the commands and their sentences."""
        lines = []
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            lines.append((name, command.get_short_help_str(WHOLE_TEXT_CHARS)))
        with formatter.section("Commands"):
            formatter.write_dl(lines)


def noun(about: str, *, example: str) -> typer.Typer:
    """Return a group of verbs. `example` is one of its commands as an operator writes
    it, without `supervisor`.
    """
    app = single()
    app.info.help = f"{about}\n\nExample: supervisor {example}"
    app.info.no_args_is_help = True
    # a group keeps its verb as a word of its own, also if it has only one
    app.callback()(_nothing)
    return app


def single() -> typer.Typer:
    """Return a command without verbs."""
    return typer.Typer(
        cls=CommandGroup,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def _nothing() -> None:
    pass


def age(text: str | None, option: str = "--since") -> timedelta | None:
    """Return the age that an operator has written. Raises UnusableError; a retry does
    not help.
    """
    if text is None:
        return None
    match = AGE.fullmatch(text)
    if match is None:
        raise UnusableError(
            f"{option}: found {text!r}; expected an age such as 90s, 15m, 2h, 3d or 1w"
        )
    length = timedelta(seconds=int(match[1]) * UNITS_S[match[2]])
    if length > MAX_AGE:
        raise UnusableError(
            f"{option}: found {text!r}; expected an age of {MAX_AGE.days}d at most"
        )
    return length


def hex_beginning(customer: str | None) -> str | None:
    """Return the address, or its beginning, that an operator has written. Raises
    UnusableError; a retry does not help.
    """
    if customer is None:
        return None
    address = customer.lower()
    if not ADDRESS_BEGINNING.fullmatch(address):
        raise UnusableError(
            f"--customer: found {customer!r}; expected an address or its beginning, such as 0x506a"
        )
    return address
