"""`supervisor log`: what operators have changed."""

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.context import cli_context
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.views import Column, View

LOG = View(
    "changes",
    "id",
    (
        Column("AT", "at", "age"),
        Column("OPERATOR", "operator"),
        Column("COMMAND", "command"),
        Column("SUBJECT", "subject", wide=True),
        Column("OUTCOME", "outcome", "state"),
        Column("REASON", "reason", flexible=True),
        Column("CHANGE", "change", flexible=True),
    ),
)
app = options.single()


@app.command()
def log(
    context: typer.Context,
    since: options.Since = None,
    limit: options.Limit = 50,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """Show who changed what, when and why, the latest first; an empty outcome: the command was cut off.

    Example: supervisor log --since 1d
    """
    cli = cli_context(context)
    younger = options.age(since)

    def rows() -> list[dict[str, object]]:
        return cli.log.last(limit, since=None if younger is None else cli.now() - younger)

    cli.present(LOG, rows, output, watch, no_color)


COMMANDS = {"log": app}
