"""`supervisor log`: what operators have changed."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.context import cli_context
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
    who: Annotated[str, typer.Option("--operator", help="Only of operators whose user@host begins so.")] = "",
    command: Annotated[str, typer.Option("--command", help="Only of commands that begin so, such as claims.")] = "",
    subject: Annotated[str, typer.Option("--subject", help="Only of what begins so, such as a job's id.")] = "",
    since: options.Since = None,
    limit: options.Limit = 50,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """Show who changed what, when and why, the latest first; an empty outcome: the command was cut off.

    Example: supervisor log --since 1d --command claims
    """
    cli = cli_context(context)
    younger = options.age(since)

    def rows() -> list[dict[str, object]]:
        least = None if younger is None else cli.now() - younger
        found = cli.log.last(limit, since=least, operator=who, command=command, subject=subject)
        return list(map(with_short_ids, found)) if output is Format.TABLE else found

    cli.present(LOG, rows, output, watch, no_color)


def with_short_ids(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry whose change names jobs by the beginnings of their ids, so that the rest of it is in sight."""
    return {**row, "change": cut_ids(str(row["change"]))}


COMMANDS = {"log": app}
