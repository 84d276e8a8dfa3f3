"""The operator's command: what the ledger knows, and the few things that are left to a person to decide.

It works with the ledger alone: no key, no chain, no SLURM (but `benchmark plan`, which asks for the nodes). What strangers
wrote is shown as data.
"""

from importlib import import_module
from typing import Any

import click

from supervisor_tasks.cli.desk import Desk
from supervisor_tasks.errors import SupervisorError, TransientError

MODULES = {
    "questions": ("status", "jobs", "job", "parked", "alarms", "sweeps", "transactions"),
    "word": ("retry", "forget", "settle", "not-in-slurm", "confirm-lost"),
    "steering": ("drain", "sweep", "forget-reporter", "take-over", "chain"),
    "provider": ("provider",),
    "slurm": ("slurm",),
    "probes": ("health", "metrics"),
    "run": ("run",),
    "benchmark": ("benchmark",),
    "db": ("db",),
}
"""The commands of each module of this package. A module is imported when one of its commands is used: `health` and `run` start
in a fraction of the time that all of them take.
"""


class Supervisor(click.Group):
    """The command; what is wrong is told in a line, and the exit status is 1 (2: wrong usage or settings)."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's own signature
        """The names of all commands."""
        return sorted(name for names in MODULES.values() for name in names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """A command by its name, or None."""
        for module, names in MODULES.items():
            if cmd_name in names:
                commands: tuple[click.Command, ...] = import_module(f"supervisor_tasks.cli.{module}").COMMANDS
                return next(command for command in commands if command.name == cmd_name)
        return None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except TransientError as error:
            raise click.ClickException(f"{error}: try again when it answers") from error
        except SupervisorError as error:
            raise click.ClickException(str(error)) from error
        except Exception as error:
            told = _told(error)
            if told is None:
                raise
            raise click.ClickException(told) from error


def _told(error: Exception) -> str | None:
    """What a database says that is no outage; None for other errors."""
    from psycopg.errors import UndefinedColumn, UndefinedTable  # only where there is an error
    from sqlalchemy.exc import ProgrammingError

    if not isinstance(error, ProgrammingError):
        return None
    said = str(error.orig).partition("\n")[0]
    if isinstance(error.orig, UndefinedTable | UndefinedColumn):
        return f"found other tables than expected ({said}): `supervisor db upgrade` first"
    return f"the ledger's database: {said}"


@click.group(cls=Supervisor)
@click.version_option(package_name="grid-supervisor", prog_name="supervisor")
@click.pass_context
def main(context: click.Context) -> None:
    """See and steer the supervisor of the cluster CLUSTER_NAME, by its ledger at DATABASE_URL."""
    context.obj = Desk()
