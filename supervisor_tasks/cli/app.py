"""The command line: nouns, each in a module of this package that is imported when it is
used.
"""

import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer

from supervisor_tasks.cli.exit_codes import MEANINGS, CommandError, ExitCode
from supervisor_tasks.cli.options import CommandGroup
from supervisor_tasks.config.embedded_servers import NoDatabaseError
from supervisor_tasks.config.settings import SettingsError
from supervisor_tasks.errors import SupervisorError, TransientError

MODULES = {
    "status": ("status",),
    "job": ("job",),
    "effect": ("effect",),
    "tx": ("tx",),
    "top": ("top",),
    "control": ("claims", "submissions", "reporter", "chain"),
    "sweep": ("sweep",),
    "cluster_commands": ("cluster",),
    "alarm": ("alarm",),
    "provider": ("provider",),
    "benchmark": ("benchmark",),
    "doctor": ("doctor",),
    "earnings_commands": ("earnings",),
    "log": ("log",),
    "config": ("config",),
    "db": ("db",),
    "retention_commands": ("retention", "archive"),
    "metrics_command": ("metrics",),
    "processes": ("health", "run"),
    "completion": ("completion",),
}
"""The nouns of each module. Its COMMANDS has a Typer for each of them."""
MODULE_OF = {noun: module for module, nouns in MODULES.items() for noun in nouns}

ABOUT = """Show and control the supervisor of the cluster CLUSTER_NAME, by its ledger at DATABASE_URL.

Each command first prints, on standard error, which ledger it works with (cluster@host/database). A command that changes
something first prints the change, and asks; --yes answers. `supervisor log` shows which operator changed what."""
EXITS = "\n\n".join(f"{code.value}  {meaning}" for code, meaning in MEANINGS.items())
EXAMPLE = "Example: supervisor job list --state RUNNING -o wide"


class Nouns(CommandGroup):
    """The nouns. An error ends the command with one line and the status that
    exit_codes.py documents.
    """

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  typer's own signature
        """Return the names of all nouns."""
        return sorted(MODULE_OF)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return a noun by its name, or None."""
        if cmd_name not in MODULE_OF:
            return None
        module = import_module(f"supervisor_tasks.cli.{MODULE_OF[cmd_name]}")
        commands: dict[str, typer.Typer] = module.COMMANDS
        command = typer.main.get_command(commands[cmd_name])
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the noun that the operator means. For an unknown word, typer suggests
        the nouns that it resembles.
        """
        self.commands: Any = dict.fromkeys(self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command. On an error that the operator can mend, end it with a status
        and a line.
        """
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            # pydantic's words, for a value that is not listed
            error.message = error.message.removeprefix("Value error, ")
            raise
        except SupervisorError as error:
            end(str(error), error)
        except Exception as error:
            message = database_error(error)
            if message is None:
                raise
            end(message, error)


def end(message: str, error: Exception) -> None:
    """Print the error as one line, and end the command with its status."""
    if isinstance(error, TransientError):
        message = f"{message}: {error.mend}"
    # each line of these begins with the variable
    if not isinstance(error, SettingsError | NoDatabaseError):
        message = f"Error: {message}"
    typer.echo(message, err=True)
    raise typer.Exit(status_of(error)) from error


def status_of(error: Exception) -> ExitCode:
    """Return the status with which an error ends the command."""
    if isinstance(error, CommandError):
        return error.status
    if isinstance(error, TransientError):
        return ExitCode.UNREACHABLE
    if isinstance(error, SettingsError | NoDatabaseError) or _is_unusable(error):
        return ExitCode.USAGE
    return ExitCode.REFUSED


def _is_unusable(error: Exception) -> bool:
    """Whether the database has rejected a value, such as a number that is too large."""
    # in here, because only an error needs the import
    from sqlalchemy.exc import DataError

    return isinstance(error, DataError)


def database_error(error: Exception) -> str | None:
    """Return the message for a database's error that is no outage; None for other
    errors.
    """
    # in here, because only an error needs the import
    from psycopg.errors import UndefinedColumn, UndefinedTable
    from sqlalchemy.exc import DataError, ProgrammingError

    if not isinstance(error, ProgrammingError | DataError):
        return None
    first_line = str(error.orig).partition("\n")[0]
    if isinstance(error, DataError):
        return f"found a value that the ledger's database cannot hold ({first_line}); expected a smaller one"
    if isinstance(error.orig, UndefinedTable | UndefinedColumn):
        return f"found other tables than expected ({first_line}): `supervisor db upgrade` first"
    return f"the ledger's database: {first_line}"


app = typer.Typer(
    cls=Nouns,
    help=ABOUT,
    epilog=f"{EXAMPLE}\n\nExit status:\n\n{EXITS}",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"supervisor {version('grid-supervisor')}")
        sys.exit(0)


@app.callback()
def root(
    context: typer.Context,
    show_version: Annotated[  # noqa: ARG001  its callback shows it
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and end.",
        ),
    ] = False,
) -> None:
    """Prepare what all commands share."""
    from supervisor_tasks.cli.cli_context import CliContext  # imports SQLAlchemy

    context.obj = CliContext()
