"""`supervisor log`: what operators have changed."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.cli_context import cli_context
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.views import Column, View
from supervisor_tasks.cli.wording import cut_ids

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
    who: Annotated[
        str,
        typer.Option(
            "--operator", help="Only of operators whose user@host begins like this."
        ),
    ] = "",
    command: Annotated[
        str,
        typer.Option(
            "--command", help="Only of commands that begin like this, such as claims."
        ),
    ] = "",
    subject: Annotated[
        str,
        typer.Option(
            "--subject",
            help="Only of subjects that begin like this, such as a job's id.",
        ),
    ] = "",
    since: options.Since = None,
    limit: options.Limit = 50,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """Show what operators changed, when and why, the latest first; an empty outcome:
    the command was cut off.

    Example: supervisor log --since 1d --command claims
    """
    cli = cli_context(context)
    younger = options.age(since)

    def rows() -> list[dict[str, object]]:
        entries = cli.log.last(
            limit,
            since=cli.begin_of(younger),
            operator=who,
            command=command,
            subject=subject,
        )
        if output is Format.TABLE:
            return [with_short_ids(entry) for entry in entries]
        return entries

    cli.present(LOG, rows, output, watch, no_color)


def with_short_ids(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry whose change has short ids, so that the rest of it fits on the
    screen.
    """
    return {**row, "change": cut_ids(str(row["change"]))}


COMMANDS = {"log": app}
