"""The operator's command: what the ledger knows, and the few things that are left to a person to decide.

It works with the ledger alone: no key, no chain, no SLURM (but `benchmark plan`, which asks for the nodes). What strangers
wrote is shown as data.
"""

from typing import Any

import click
from psycopg.errors import UndefinedColumn, UndefinedTable
from sqlalchemy.exc import ProgrammingError

from supervisor_tasks.cli import benchmark, db, probes, provider, questions, slurm, steering, word
from supervisor_tasks.cli.desk import Desk
from supervisor_tasks.errors import SupervisorError, TransientError


class Supervisor(click.Group):
    """The command; what is wrong is told in a line, and the exit status is 1 (2: wrong usage or settings)."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except TransientError as error:
            raise click.ClickException(f"{error}: try again when it answers") from error
        except ProgrammingError as error:
            raise click.ClickException(_told(error)) from error
        except SupervisorError as error:
            raise click.ClickException(str(error)) from error


def _told(error: ProgrammingError) -> str:
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


# a group of commands more is a line here
for commands in (
    questions.COMMANDS,
    word.COMMANDS,
    steering.COMMANDS,
    provider.COMMANDS,
    slurm.COMMANDS,
    probes.COMMANDS,
    benchmark.COMMANDS,
    db.COMMANDS,
):
    for command in commands:
        main.add_command(command)
