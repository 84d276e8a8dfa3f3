"""`supervisor doctor`: tries everything, and names what must be mended."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.cli_context import CliContext, cli_context
from supervisor_tasks.cli.exit_codes import ExitCode
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.output import Output
from supervisor_tasks.cli.views import STYLES, Cell, Column, View
from supervisor_tasks.config.settings import SettingsError
from supervisor_tasks.config.variables import given_secrets
from supervisor_tasks.doctor.check_results import Finding, Level, worst

FINDINGS = View(
    "findings",
    "name",
    (
        Column("LEVEL", "level", "state"),
        Column("WHAT", "name"),
        Column("FOUND", "found", flexible=True),
        Column("MEND", "mend", flexible=True),
    ),
)
app = options.single()


@app.command()
def doctor(
    context: typer.Context,
    customer: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Log in as this customer, instead of the last one in SLURM.",
        ),
    ] = None,
    within_s: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=300,
            help="Seconds for all probes together, where a slow site needs more than 10 s.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The same as -o json.")
    ] = False,
    output: options.Output = Format.TABLE,
    no_color: options.NoColor = False,
) -> None:
    """Try everything that a fleet works with, in less than 10 s, and show the state of
    each thing and what mends it.

    It changes nothing. It leaves out what needs a key that this environment lacks: run
    it with a worker's settings. Status 1 if something is red.

    Example: supervisor doctor -o json
    """
    from supervisor_tasks.doctor.probe_sets import check_up  # imports all clients

    cli = cli_context(context)
    cli.shown = Output(secrets_of(os.environ))
    cli.shown.color = not no_color
    cli.print_target()
    address = options.hex_beginning(customer)
    show_findings(
        cli,
        check_up(dict(os.environ), address, within_s),
        Format.JSON if as_json else output,
    )


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Return the texts that must not be shown, also if settings are malformed."""
    from supervisor_tasks.doctor.probe_context import readable_settings

    given = given_secrets(environment)
    try:
        return given + readable_settings(environment)[0].secret_values()
    except SettingsError:
        return given


def show_findings(cli: CliContext, findings: Sequence[Finding], output: Format) -> None:
    """Print findings in a form, and end the command with status 1 if one is red."""
    if output in (Format.TABLE, Format.WIDE):
        show_lines(cli.shown, findings)
    else:
        rows = [
            {
                "name": one.name,
                "level": one.level.value,
                "found": one.found,
                "mend": one.mend,
            }
            for one in findings
        ]
        cli.shown.rows(FINDINGS, rows, output, datetime.now(UTC))
    if worst(findings) is Level.RED:
        raise typer.Exit(ExitCode.REFUSED)


def show_lines(shown: Output, findings: Sequence[Finding]) -> None:
    """Print a line for each finding, the worst first, with its mend below it, and how
    many there are of each level.

    What was not tried for one reason is one line.
    """
    lines = list[list[Cell]]()
    for level in (Level.RED, Level.YELLOW, Level.GREEN):
        for finding in findings:
            if finding.level is level:
                lines += _lines_of(finding)
    shown.lines(lines + _skipped_lines(findings))
    numbers = Counter(finding.level for finding in findings)
    shown.title(
        ", ".join(
            f"{numbers[level]} {level.value}" for level in Level if numbers[level]
        )
    )


def _lines_of(finding: Finding) -> list[list[Cell]]:
    style = STYLES.get(finding.level.value, "")
    lines = [
        [Cell(finding.level.value, style), Cell(f"{finding.name}: {finding.found}")]
    ]
    if finding.mend:
        lines.append([Cell(""), Cell(f"mend: {finding.mend}", style)])
    return lines


def _skipped_lines(findings: Sequence[Finding]) -> list[list[Cell]]:
    """Return a line for each reason, with all that was not tried for it."""
    names_by_reason = dict[str, list[str]]()
    for finding in findings:
        if finding.level is Level.SKIPPED:
            names_by_reason.setdefault(finding.found, []).append(finding.name)
    return [
        [Cell(Level.SKIPPED.value, "dim"), Cell(f"{', '.join(names)}: {reason}", "dim")]
        for reason, names in names_by_reason.items()
    ]


COMMANDS = {"doctor": app}
