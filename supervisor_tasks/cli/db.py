"""The commands for the ledger's tables."""

import time
from typing import Annotated

import psycopg
import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.context import CliContext, desk_of, operator, target
from supervisor_tasks.cli.exit_codes import CommandError
from supervisor_tasks.cli.options import Format
from supervisor_tasks.config.embedded_servers import database_url, running_database_url
from supervisor_tasks.config.private_files import StateFolderError
from supervisor_tasks.config.settings import SettingsError
from supervisor_tasks.ledger.migrations import newest_revision, revision, stops_old_processes
from supervisor_tasks.ledger.migrations import upgrade as upgrade_tables
from supervisor_tasks.ledger.operator_log import DONE, OperatorLog

LOOK_EVERY_S = 0.5
CONNECT_TIMEOUT_S = 3
app = options.noun("See whether the ledger's tables are up to date, and bring them up to date.", example="db status")


@app.command()
def upgrade(
    context: typer.Context,
    wait_s: Annotated[
        float, typer.Option(min=0, help="Wait so long for a database that starts at the same time.")
    ] = 0.0,
    embedded: Annotated[
        bool,
        typer.Option("--embedded", help="Start the embedded Postgres if DATABASE_URL is not set, as a fleet does."),
    ] = False,
) -> None:
    """Bring the tables up to what this version works with; the same again changes nothing.

    Several of these may run at once: they take turns. A fleet may work meanwhile: a lock on a table is waited for
    for 1 s at most. If a long transaction holds a table, the command fails after five tries; the same again continues.

    Example: supervisor db upgrade --wait-s 60
    """
    desk = desk_of(context)
    url = _started(desk) if embedded else running_database_url(desk.settings)
    typer.echo(target(desk.settings.cluster_name, url), err=True)
    _wait_for(url, wait_s)
    _warn_of_old_processes(url)
    before, after = upgrade_tables(url)
    if before != after:
        _store(desk, f"the ledger's tables are brought from {before or 'none'} to {after}")
    typer.echo(f"the ledger's tables are at {after}" + ("" if before == after else f", and were at {before or 'none'}"))


@app.command()
def status(context: typer.Context, output: options.Output = Format.TABLE, no_color: options.NoColor = False) -> None:
    """Show which revision the ledger's tables have, and which one this version works with; status 1 if they differ.

    Example: supervisor db status
    """
    desk = desk_of(context)
    desk.shown.color = not no_color
    url = running_database_url(desk.settings)
    typer.echo(target(desk.settings.cluster_name, url), err=True)
    found, expected = revision(url), newest_revision()
    if output in (Format.JSON, Format.YAML):
        desk.shown.document({"found": found, "expected": expected}, output)
    elif output is Format.NAME:
        typer.echo(found or "none")
    if found != expected:
        raise CommandError(
            f"found the ledger's tables at {found or 'none'}; expected {expected}: `supervisor db upgrade`"
        )
    if output in (Format.TABLE, Format.WIDE):
        typer.echo(f"the ledger's tables are at {found}, as this version expects")


def _started(desk: CliContext) -> str:
    try:
        return database_url(desk.settings)
    except StateFolderError as error:
        raise SettingsError([str(error)]) from error


def _store(desk: CliContext, change: str) -> None:
    """Store the upgrade in the operators' log, which it may just have made."""
    log = OperatorLog(desk.database, desk.settings.cluster_name)
    log.end(log.begin(operator=operator(), command="db upgrade", subject="tables", change=change, reason=""), DONE)


def _warn_of_old_processes(url: str) -> None:
    """Name the migrations after which processes of the release before do not work, if the ledger has had any."""
    found = revision(url)
    stops = [] if found is None else stops_old_processes(found)
    if stops:
        typer.echo(f"after {', '.join(stops)}, processes of the release before do not work: stop them first", err=True)


def _wait_for(url: str, wait_s: float) -> None:
    """Wait until the database answers, `wait_s` at most; after that the upgrade reports the error."""
    until_s = time.monotonic() + wait_s
    while time.monotonic() < until_s:
        try:
            psycopg.connect(url.replace("+psycopg", "", 1), connect_timeout=CONNECT_TIMEOUT_S).close()
            return
        except psycopg.OperationalError:
            time.sleep(LOOK_EVERY_S)  # no event reports when a database begins to answer


COMMANDS = {"db": app}
