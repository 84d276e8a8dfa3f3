"""The commands for the ledger's tables."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated

import psycopg
import structlog
import typer
from sqlalchemy import Engine

from supervisor_tasks.cli import options
from supervisor_tasks.cli.cli_context import CliContext, cli_context, operator
from supervisor_tasks.cli.exit_codes import CommandError, UnusableError
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.target import target
from supervisor_tasks.cli.wording import counted
from supervisor_tasks.config import logging as logs
from supervisor_tasks.config.embedded_servers import database_url, running_database_url
from supervisor_tasks.config.private_files import StateFolderError
from supervisor_tasks.config.settings import SettingsError
from supervisor_tasks.connections.postgres_url import for_libpq
from supervisor_tasks.errors import LedgerUnavailableError, TransientError
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.driver import unavailable
from supervisor_tasks.ledger.migrations import (
    MigrationError,
    UnknownRevisionError,
    newest_revision,
    pending,
    revision,
    stops_old_processes,
    tables,
)
from supervisor_tasks.ledger.migrations import upgrade as upgrade_tables
from supervisor_tasks.ledger.operator_log import DONE, OperatorLog, logs_of_all

REFRESH_EVERY_S = 0.5
CONNECT_TIMEOUT_S = 3
log = structlog.get_logger()
app = options.noun(
    "See whether the ledger's tables are up to date, and bring them up to date.",
    example="db status",
)


@app.command()
def upgrade(
    context: typer.Context,
    wait_s: Annotated[
        float,
        typer.Option(
            min=0,
            help="Wait this many seconds at most for a database that starts at the same time.",
        ),
    ] = 0.0,
    embedded: Annotated[
        bool,
        typer.Option(
            "--embedded",
            help="Start the embedded Postgres if DATABASE_URL is not set, as a fleet does.",
        ),
    ] = False,
    as_log: Annotated[
        bool,
        typer.Option(
            "--log",
            help="Write lines of the log, as a fleet's processes do; --yes must be given, too.",
        ),
    ] = False,
    reason: options.Reason = "",
    yes: options.Yes = False,
) -> None:
    """Bring the tables of all clusters up to what this version works with; running it
    again changes nothing.

    Several of these commands may run at once: they take turns. A fleet may work
    meanwhile: the command waits for a lock on a table for 1.5 s at most. If a long
    transaction holds a table, the command fails after five tries; run it again to
    continue. Tables of a newer release stay as they are: the command ends with status
    1, and with --log with 0, because a fleet of the release before works with them.

    Example: supervisor db upgrade --wait-s 60 --yes
    """
    cli = cli_context(context)
    if as_log and not yes:
        raise UnusableError(
            "--log: found no --yes; expected both, as a log has no terminal to ask at"
        )
    url = _started(cli) if embedded else running_database_url(cli.settings)
    _tell_target(cli, url, as_log=as_log)
    # after that, the upgrade reports the error
    _missing_after(lambda: _missing_login(url), wait_s, as_log=as_log)
    try:
        will = _will(url, revision(url))
    except UnknownRevisionError as error:
        if not as_log:
            raise
        # a process of the release before starts again: it works with the newer tables
        log.info("tables_newer", found=str(error))
        return
    if will:
        if as_log:
            log.info("tables_upgrade_begins", change=will)
        else:
            cli.confirm(will, yes=yes)
    with _recorded(cli, url, will, reason):
        before, after = upgrade_tables(url)
    if as_log:
        log.info("tables_upgraded", before=before, after=after)
    else:
        was = "" if before == after else f", and were at {_revision_shown(before)}"
        typer.echo(f"the ledger's tables are at {after}{was}")


@app.command()
def status(
    context: typer.Context,
    output: options.Output = Format.TABLE,
    no_color: options.NoColor = False,
) -> None:
    """Show which revision the ledger's tables have, and which one this version works
    with; status 1 if they differ.

    Example: supervisor db status
    """
    cli = cli_context(context)
    cli.shown.color = not no_color
    url = running_database_url(cli.settings)
    typer.echo(target(cli.settings.cluster_name, url), err=True)
    found, expected = revision(url), newest_revision()
    if output in (Format.JSON, Format.YAML):
        cli.shown.document({"found": found, "expected": expected}, output)
    elif output is Format.NAME:
        typer.echo(_revision_shown(found))
    if found != expected:
        raise CommandError(
            f"found the ledger's tables at {_revision_shown(found)}; expected {expected}: `supervisor db upgrade`"
        )
    if output in (Format.TABLE, Format.WIDE):
        typer.echo(f"the ledger's tables are at {found}, as this version expects")


@app.command()
def wait(
    context: typer.Context,
    wait_s: Annotated[
        float, typer.Option(min=0, help="Wait this many seconds at most.")
    ] = 600.0,
    as_log: Annotated[
        bool,
        typer.Option(
            "--log", help="Write lines of the log, as a fleet's processes do."
        ),
    ] = False,
) -> None:
    """Wait until the ledger's tables are those of this version, or of a newer release;
    status 1 if they are not in time.

    It is for processes that start at the same time as `supervisor db upgrade`, such as
    the chart's pods.

    Example: supervisor db wait --wait-s 600
    """
    cli = cli_context(context)
    url = running_database_url(cli.settings)
    _tell_target(cli, url, as_log=as_log)
    missing = _missing_after(lambda: _missing(url), wait_s, as_log=as_log)
    if missing:
        raise CommandError(missing)
    if as_log:
        log.info("tables_found")
    else:
        typer.echo("the ledger's tables are as this version needs them")


def _tell_target(cli: CliContext, url: str, *, as_log: bool) -> None:
    """Print which ledger this is. With `as_log`, configure the log, and write a line of
    it instead.
    """
    ledger = target(cli.settings.cluster_name, url)
    if not as_log:
        typer.echo(ledger, err=True)
        return
    logs.configure(
        cli.settings.effective_log_level,
        cli.settings.secret_values(),
        cli.settings.cluster_name,
    )
    log.info("tables_checked", ledger=ledger)


def _missing_after(look: Callable[[], str], wait_s: float, *, as_log: bool) -> str:
    """Wait until `look` finds nothing missing, `wait_s` at most; returns what is
    missing then. Prints or logs each change of it.
    """
    deadline_s = time.monotonic() + wait_s
    missing, printed = look(), ""
    while missing and time.monotonic() < deadline_s:
        if missing != printed:
            _show_awaited(missing, as_log=as_log)
            printed = missing
        # no event reports the end of an upgrade, or that a database begins to answer
        time.sleep(REFRESH_EVERY_S)
        missing = look()
    return missing


def _show_awaited(missing: str, *, as_log: bool) -> None:
    if as_log:
        log.info("tables_awaited", missing=missing)
    else:
        typer.echo(f"waiting: {missing}", err=True)


def _revision_shown(found: str | None) -> str:
    """Return a revision for a message."""
    return found or "none"


def _missing(url: str) -> str:
    """Return what the tables lack for this version; empty if nothing, as where a newer
    release has upgraded them.
    """
    try:
        found = revision(url)
        migrations = pending(found)
    except UnknownRevisionError:
        return ""
    except MigrationError as error:
        return _awaited(error)
    if not migrations:
        return ""
    return f"found the ledger's tables at {_revision_shown(found)}; expected {migrations[-1]}: `supervisor db upgrade`"


def _started(cli: CliContext) -> str:
    """Return the database's URL; the embedded Postgres is started if none is set.
    Raises SettingsError.
    """
    try:
        return database_url(cli.settings)
    except StateFolderError as error:
        raise SettingsError([str(error)]) from error


def _will(url: str, found: str | None) -> str:
    """Return what the upgrade will do, in numbers; empty if there is nothing to do.
    Raises UnknownRevisionError.
    """
    migrations = pending(found)
    if not migrations:
        return ""
    steps = counted(len(migrations), "migration")
    if found is None:
        return f"the ledger's tables will be made by {steps}, up to {migrations[-1]}"
    size, stopping = tables(url), stops_old_processes(found)
    will = (
        f"the ledger's tables will be brought from {found} to {migrations[-1]} by {steps}, for all clusters; its"
        f" {counted(size.number, 'table')} hold about {counted(size.rows, 'row')} in {size.size_bytes / 1e6:.1f} MB"
    )
    if stopping:
        will += f"; after {', '.join(stopping)}, processes of the release before do not work: stop them first"
    return will


@contextmanager
def _recorded(cli: CliContext, url: str, will: str, reason: str) -> Iterator[None]:
    """Store the upgrade and its outcome in the operators' log of each cluster. Older
    tables may have no log yet: then the entries are stored after the upgrade.
    """
    if not will:
        yield
        return
    engine = open_engine(url, connections=1)
    texts = {
        "operator": operator(),
        "command": "db upgrade",
        "change": will,
        "reason": reason,
    }
    try:
        begun = _begun(cli, engine, texts)
        try:
            yield
        except BaseException as error:
            with suppress(LedgerUnavailableError):  # then the outcome stays unknown
                _end(begun, f"{type(error).__name__}: {error}")
            raise
        _end(begun or _begun(cli, engine, texts), DONE)
    finally:
        engine.dispose()


def _begun(
    cli: CliContext, engine: Engine, texts: Mapping[str, str]
) -> list[tuple[OperatorLog, list[int]]]:
    """Store that the upgrade begins; returns each log with its entries. Where the log's
    table is missing, there are none.
    """
    return [
        (log, log.begin("tables", **texts))
        for log in logs_of_all(engine, cli.settings.cluster_name)
    ]


def _end(begun: Sequence[tuple[OperatorLog, list[int]]], outcome: str) -> None:
    for log, entries in begun:
        log.end(entries, outcome)


def _missing_login(url: str) -> str:
    """Return why the database does not let us in; empty if it does."""
    try:
        psycopg.connect(for_libpq(url), connect_timeout=CONNECT_TIMEOUT_S).close()
    except psycopg.OperationalError as error:
        return _awaited(unavailable(error))
    return ""


def _awaited(error: TransientError | None) -> str:
    """Return what the database answers, and what the operator must do, if anything."""
    if error is None or error.mend == TransientError.mend:
        return str(error)
    return f"{error}: {error.mend}"


COMMANDS = {"db": app}
