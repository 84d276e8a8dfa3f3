"""`supervisor earnings`: what the contract has paid, for how many minutes, and what the
gas has cost.
"""

import csv
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.cli_context import CliContext, cli_context
from supervisor_tasks.cli.exit_codes import CommandError
from supervisor_tasks.cli.job import bill_of
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.views import LEAST_ID, Bar, Column, View
from supervisor_tasks.cli.wording import counted
from supervisor_tasks.jobs.model import Job
from supervisor_tasks.ledger.earnings import (
    Earned,
    Earnings,
    EarningsFilter,
    EarningsSort,
    Per,
)
from supervisor_tasks.provider.offer import CREDIT, format_credits, rounded_credits

MAX_SHOWN_ROWS = 100  # rows of a table; programs get all
MAX_DAYS = 400  # in a plot, also the days on which nothing was earned
NO_JOB = "(no job)"  # transactions such as a registration
SUMS = (
    Column("JOBS", "jobs", "number"),
    Column("MINUTES", "minutes", "number"),
    Column("CREDITS", "credits", "number"),
    Column("GAS_PAID", "gas_paid", "number"),
)
EARNINGS = {
    Per.DAY: View("earnings", "day", (Column("DAY", "day"), *SUMS)),
    Per.MONTH: View("earnings", "month", (Column("MONTH", "month"), *SUMS)),
    Per.CUSTOMER: View(
        "earnings", "customer", (Column("CUSTOMER", "customer", "id"), *SUMS)
    ),
    Per.JOB: View(
        "earnings",
        "job",
        (
            Column("JOB", "job", "id"),
            Column("CUSTOMER", "customer", "id"),
            Column("ENDED", "ended_at", "age"),
            Column("OUTCOME", "outcome", "state"),
            *SUMS[1:],
        ),
    ),
}
app = options.single()


@app.command()
def earnings(
    context: typer.Context,
    per: Annotated[Per, typer.Option(help="What a row is for.")] = Per.DAY,
    job: Annotated[
        str | None,
        typer.Option(
            metavar="JOB", help="Only this job, with its bill; named as for `job show`."
        ),
    ] = None,
    customer: Annotated[
        str | None,
        typer.Option(help="Only of the customer whose address begins like this."),
    ] = None,
    since: options.Since = None,
    sort: Annotated[
        EarningsSort | None,
        typer.Option(
            help="The order: the largest sum first; without it the latest first, of customers the best."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=options.MAX_NUMBER,
            help=f"Show this many rows at most; without it, a table has {MAX_SHOWN_ROWS} and a file has all.",
        ),
    ] = None,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print comma-separated values, to the wei.")
    ] = False,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw the credits as bars in the terminal.")
    ] = False,
    svg: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Draw the credits into this SVG file."),
    ] = None,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """Show what was earned per day, month, customer or job: jobs, minutes, credits, and
    what the gas has cost.

    Credits are those that the contract has transferred to the wallet; days are UTC's.
    JSON, YAML and --csv have exact amounts, also in wei.

    Example: supervisor earnings --per month --csv > earnings.csv
    """
    cli = cli_context(context)
    cli.shown.color = not no_color
    chosen, job_id = None, None
    if job is not None:
        chosen = cli.job(job)
        per, job_id = Per.JOB, chosen.job_id
    wanted = EarningsFilter(job_id, options.hex_beginning(customer), options.age(since))
    is_table = output in (Format.TABLE, Format.WIDE) and not as_csv
    most = MAX_SHOWN_ROWS if limit is None and is_table else limit
    earned = Earnings(cli.ledger.engine, cli.ledger.cluster)

    def show() -> None:
        rows = earned.rows(per, wanted, most, sort)
        if plot or svg is not None:
            _draw(cli, per, rows, plot, svg)
            return
        if as_csv:
            _print_csv(per, rows)
            return
        shown = [shown_row(per, row, rounded=output is Format.TABLE) for row in rows]
        cli.shown.rows(EARNINGS[per], shown, output, cli.now())
        if is_table:
            _show_total(cli, earned.total(wanted), chosen)

    cli.shown.repeated(show, watch)


def shown_row(per: Per, row: Earned, *, rounded: bool) -> dict[str, Any]:
    """Return a row for all forms; the wei are text, as numbers of JSON are not
    exact.
    """
    credits = rounded_credits if rounded else format_credits
    shown: dict[str, Any] = {per.value: row.name or NO_JOB}
    if per is Per.JOB:
        shown |= {
            "customer": row.customer,
            "ended_at": row.ended_at,
            "outcome": row.outcome,
        }
    return shown | {
        "jobs": row.jobs,
        "minutes": row.minutes,
        "credits": credits(row.earned_wei),
        "gas_paid": credits(row.fees_wei),
        "credits_wei": str(row.earned_wei),
        "gas_paid_wei": str(row.fees_wei),
    }


def _print_csv(per: Per, rows: Sequence[Earned]) -> None:
    shown = [shown_row(per, row, rounded=False) for row in rows]
    empty = shown_row(per, Earned("", 0, 0, 0, 0), rounded=False)
    writer = csv.DictWriter(sys.stdout, list(empty), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_csv_row, shown))


def _csv_row(row: Mapping[str, Any]) -> dict[str, Any]:
    ended_at = row.get("ended_at")
    if ended_at is None:
        return dict(row)
    return {**row, "ended_at": ended_at.isoformat(timespec="seconds")}


def _show_total(cli: CliContext, total: Earned, job: Job | None) -> None:
    cli.shown.blank()
    if job is not None:
        cli.shown.facts(bill_of(cli, job).facts())
        return
    text = (
        f"{counted(total.jobs, 'job')}, {counted(total.minutes, 'minute')},"
        f" {format_credits(total.earned_wei)} credits earned, {format_credits(total.fees_wei)} coins paid for gas"
    )
    cli.shown.facts({"total": text})


def _draw(
    cli: CliContext, per: Per, rows: Sequence[Earned], plot: bool, svg: Path | None
) -> None:
    bars = bars_of(per, rows)
    if not bars:
        raise CommandError(
            "found no earnings to draw; expected a job that was paid: see `supervisor job list`"
        )
    if plot:
        cli.shown.bars(bars)
    if svg is not None:
        from supervisor_tasks.cli.plot import drawn_bars  # imports pygal

        svg.write_bytes(
            drawn_bars(f"Credits of {cli.settings.cluster_name} per {per}", bars)
        )
        typer.echo(f"{svg}: {counted(len(bars), per.value)}")


def bars_of(per: Per, rows: Sequence[Earned]) -> list[Bar]:
    """Return the bars of a plot: days and months from the earliest, with the days on
    which nothing was earned.
    """
    earned_wei = {row.name or NO_JOB: row.earned_wei for row in rows}
    names = NAMES_OF_BARS.get(per, list)(earned_wei)
    return [_bar(name, earned_wei.get(name, 0)) for name in names]


def _paid(earned_wei: Mapping[str, int]) -> list[str]:
    """Return the jobs that earned something."""
    return [name for name, wei in earned_wei.items() if wei]


def _days(days: Collection[str]) -> list[str]:
    """Return each day from the earliest to the latest one, MAX_DAYS at most."""
    if not days:
        return []
    last = date.fromisoformat(max(days))
    first = max(date.fromisoformat(min(days)), last - timedelta(days=MAX_DAYS - 1))
    return [
        (first + timedelta(days=day)).isoformat()
        for day in range((last - first).days + 1)
    ]


def _bar(name: str, wei: int) -> Bar:
    return Bar(name[: max(LEAST_ID, 10)], wei / CREDIT, rounded_credits(wei))


NAMES_OF_BARS: Mapping[Per, Callable[[Mapping[str, int]], list[str]]] = {
    Per.DAY: _days,
    Per.MONTH: sorted,
    Per.JOB: _paid,
}
"""The functions that choose a plot's bars. A plot of anything else has a bar for each
row, in the rows' order.
"""
COMMANDS = {"earnings": app}
