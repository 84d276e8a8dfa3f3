"""The commands for old rows: pause their deletion, and archive them first."""

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.cli_context import CliContext, cli_context
from supervisor_tasks.cli.exit_codes import CommandError, UnusableError
from supervisor_tasks.cli.wording import counted
from supervisor_tasks.ledger.archive import ArchiveError, archive_to_stream
from supervisor_tasks.ledger.archive import archive as write_archive
from supervisor_tasks.ledger.retention import SCRIPTS_KEPT_DAYS, Retention
from supervisor_tasks.ledger.switch_names import Switch

retention = options.noun(
    "Pause and resume the deletion of old rows.", example="retention pause"
)
archive = options.single()
STANDARD_OUTPUT = Path("-")


@retention.command()
def pause(
    context: typer.Context, reason: options.RequiredReason, yes: options.Yes = False
) -> None:
    """Delete no old rows until `supervisor retention resume`, such as during an audit.

    Example: supervisor retention pause --reason "audit of 2025"
    """
    cli = cli_context(context)
    will = f"{_old_rows(cli)} of {cli.settings.cluster_name} will be kept until `supervisor retention resume`"
    with cli.change("retention pause", "retention", will, yes=yes, reason=reason):
        cli.ledger.switches.set(Switch.RETENTION_PAUSED, reason)
    typer.echo("no old rows are deleted")


@retention.command()
def resume(
    context: typer.Context, reason: options.Reason = "", yes: options.Yes = False
) -> None:
    """Delete old rows again, from the next night on.

    Example: supervisor retention resume
    """
    cli = cli_context(context)
    why = cli.ledger.switches.reason(Switch.RETENTION_PAUSED)
    if why is None:
        raise CommandError(
            "found a deletion that is not paused; there is nothing to resume"
        )
    will = f"{_old_rows(cli)} will be deleted from the next night on; the deletion was paused ({why})"
    with cli.change("retention resume", "retention", will, yes=yes, reason=reason):
        cli.ledger.switches.unset(Switch.RETENTION_PAUSED)
    typer.echo("old rows are deleted again")


def _old_rows(cli: CliContext) -> str:
    """Return which old rows the deletion concerns, and how many there are now."""
    days = cli.settings.retention_days
    old = Retention(cli.ledger.engine, cli.ledger.cluster, days).old()
    scripts = f"scripts of jobs that ended more than {counted(SCRIPTS_KEPT_DAYS, 'day')} ago (now {old.scripts})"
    if days == 0:
        return scripts
    return f"{scripts}, and jobs that ended more than {counted(days, 'day')} ago (now {old.jobs}),"


@archive.command()
def write(
    context: typer.Context,
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="DATE",
            help="What ended before that day (UTC), such as 2026-01-01.",
        ),
    ],
    to: Annotated[
        Path,
        typer.Option(
            "--to",
            metavar="FILE",
            help="A new file, such as 2025.jsonl.zst; - for standard output.",
        ),
    ],
) -> None:
    """Write what has ended into a file of JSON lines, compressed by zstandard. It has
    jobs with all their rows, transactions of no job, sweeps, incidents of alarms, and
    benchmark runs with their results. Each line has its `kind`.

    Nothing is deleted. A file that exists is not overwritten. In a container, `--to -`
    writes to standard output, as a file there is gone with the container.

    Example: supervisor archive --before 2026-01-01 --to 2025.jsonl.zst
    """
    cli = cli_context(context)
    day = _day(before)
    if to == STANDARD_OUTPUT:
        written = _write_to_standard_output(cli, day)
        typer.echo(f"{_numbers(written)} on standard output", err=True)
        return
    written = write_archive(cli.ledger.engine, cli.settings.cluster_name, day, to)
    typer.echo(f"{_numbers(written)} in {to}")


def _write_to_standard_output(cli: CliContext, before: datetime) -> Mapping[str, int]:
    if sys.stdout.isatty():
        raise UnusableError(
            "--to -: found a terminal on standard output; expected a file or a pipe, as with >2025.jsonl.zst"
        )
    try:
        return archive_to_stream(
            cli.ledger.engine, cli.settings.cluster_name, before, sys.stdout.buffer
        )
    except OSError as error:
        # At its end Python would try to write the rest once more, and end with status
        # 120.
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise ArchiveError(
            f"standard output: not written to the end ({error.strerror}); delete what it has"
        ) from error


def _numbers(written: Mapping[str, int]) -> str:
    """Return how many lines of each kind there are, in words."""
    numbers = [
        counted(number, kind.replace("_", " "))
        for kind, number in written.items()
        if number or kind == "job"
    ]
    return ", ".join(numbers)


def _day(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError as error:
        raise UnusableError(
            f"--before: found {text!r}; expected a day such as 2026-01-01"
        ) from error


COMMANDS = {"retention": retention, "archive": archive}
