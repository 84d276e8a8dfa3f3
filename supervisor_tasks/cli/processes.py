"""`health` and `run` as words of the command line, for its help and for completion.

`supervisor_tasks.cli.main` runs both without typer, so that they start fast.
"""

import sys

import typer

from supervisor_tasks.cli import health_command, options, run_command

AS_THEY_ARE = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "help_option_names": [],
}
health_app = options.single()
run_app = options.single()


@health_app.command(
    context_settings=AS_THEY_ARE,
    help=f"{health_command.ABOUT}\n\n{health_command.EXAMPLE}",
)
def health_(context: typer.Context) -> None:
    """Run `supervisor health`."""
    sys.exit(health_command.main(context.args))


@run_app.command(
    context_settings=AS_THEY_ARE | {"allow_interspersed_args": False},
    help=f"{run_command.ABOUT}\n\n{run_command.EXAMPLE}",
)
def run_(context: typer.Context) -> None:
    """Run `supervisor run`."""
    run_command.main(context.args)


COMMANDS = {"health": health_app, "run": run_app}
