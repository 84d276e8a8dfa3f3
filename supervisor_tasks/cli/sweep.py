"""`supervisor sweep`: the comparison of ledger, contract and SLURM."""

import time
from dataclasses import asdict
from typing import Annotated

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.context import CliContext, desk_of
from supervisor_tasks.cli.exit_codes import CommandError
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.views import Column, View, plain, span
from supervisor_tasks.ledger.reconciliations import Swept

POLL_S = 0.2
SWEEPS = View(
    "sweeps",
    "id",
    (
        Column("SWEEP", "id", "number"),
        Column("BEGUN", "begun_at", "age"),
        Column("TOOK", "took_s", "span"),
        Column("REPORT", "report", flexible=True),
    ),
)
app = options.noun("Compare ledger, contract and SLURM, and see what was found and done.", example="sweep show")


@app.command()
def run(
    context: typer.Context,
    wait_s: Annotated[float, typer.Option(min=0, help="Wait so long for the report.")] = 120.0,
    reason: options.Reason = "",
    yes: options.Yes = False,
    output: options.Output = Format.TABLE,
    no_color: options.NoColor = False,
) -> None:
    """Have a worker compare ledger, contract and SLURM now, and mend what differs; shows the report.

    Example: supervisor sweep run --yes
    """
    desk = desk_of(context)
    desk.shown.color = not no_color
    before = desk.sweeps.last()
    open_jobs = sum(desk.overview.snapshot().jobs.values())
    will = f"{open_jobs} open jobs will be compared with the contract and SLURM, and what differs will be mended"
    with desk.change("sweep run", "all open jobs", will, yes=yes, reason=reason):
        desk.sweeps.ask(reason or "the operator")
    deadline = time.monotonic() + wait_s
    while (found := desk.sweeps.last()) == before:
        if time.monotonic() > deadline:
            raise CommandError(
                f"found no report within {wait_s:g} s; expected one: see `supervisor health`, then `supervisor sweep show`"
            )
        time.sleep(POLL_S)  # the report is a row, and no event reports a new row
    _show(desk, found[0], output)


@app.command("list")
def list_(
    context: typer.Context,
    limit: options.Limit = 20,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """List the last sweeps, the newest first.

    Example: supervisor sweep list --limit 3 -o json
    """
    desk = desk_of(context)
    desk.present(SWEEPS, lambda: [_row(one) for one in desk.sweeps.last(limit)], output, watch, no_color)


@app.command()
def show(
    context: typer.Context,
    sweep: Annotated[int | None, typer.Argument(metavar="[SWEEP]", help="Its number; else the last one.")] = None,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """Show what a sweep looked at, found and did.

    Example: supervisor sweep show
    """
    desk = desk_of(context)
    desk.shown.color = not no_color
    desk.shown.repeated(lambda: _show(desk, _found(desk, sweep), output), watch)


def _found(desk: CliContext, sweep: int | None) -> Swept:
    found = next((one for one in desk.sweeps.last(1 if sweep is None else 1000) if sweep in (None, one.id)), None)
    if found is None:
        named = "no sweep" if sweep is None else f"no sweep {sweep} among the last 1000"
        raise CommandError(f"found {named}; see `supervisor sweep list`, or ask for one by `supervisor sweep run`")
    return found


def _show(desk: CliContext, sweep: Swept, output: Format) -> None:
    row = _row(sweep)
    if output is Format.NAME:
        typer.echo(sweep.id)
    elif output in (Format.JSON, Format.YAML):
        desk.shown.document(row, output)
    else:
        report = {name: plain(value) for name, value in sweep.report.items()}
        desk.shown.facts(
            {"sweep": sweep.id, "began": sweep.begun_at.astimezone(), "took": span(took_s(sweep))} | report
        )


def _row(sweep: Swept) -> dict[str, object]:
    return asdict(sweep) | {"took_s": took_s(sweep)}


def took_s(sweep: Swept) -> float:
    """Return how long the sweep took."""
    return (sweep.finished_at - sweep.begun_at).total_seconds()


COMMANDS = {"sweep": app}
