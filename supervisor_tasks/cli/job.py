"""`supervisor job`: the customers' jobs, and the decisions about them that only an
operator can make.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from supervisor_tasks.cli import job_actions, options
from supervisor_tasks.cli.bill import Bill, assigned_prices
from supervisor_tasks.cli.cli_context import CliContext, cli_context
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.timeline import facts_of, lines_of, next_of
from supervisor_tasks.cli.views import Column, View
from supervisor_tasks.jobs.model import Job, State
from supervisor_tasks.ledger.earnings import Earnings, EarningsFilter
from supervisor_tasks.ledger.registrations import Registrations
from supervisor_tasks.ledger.status_queries import JobFilter

JOBS = View(
    "jobs",
    "job_id",
    (
        Column("JOB", "job_id", "id"),
        Column("STATE", "state", "state"),
        Column("CHAIN", "chain_status", "state", wide=True),
        Column("SLURM", "slurm_id", "number"),
        Column("CUSTOMER", "customer", "id"),
        Column("AGE", "created_at", "age"),
        Column("CHANGED", "updated_at", "age"),
        Column("LIMIT_MIN", "time_limit_min", "number", wide=True),
        Column("RAN", "elapsed_s", "span", wide=True),
        Column("OUTCOME", "outcome", "outcome", flexible=True),
    ),
)


class JobSort(StrEnum):
    """The orders of a list of jobs."""

    AGE = "age"
    CHANGED = "changed"
    STATE = "state"
    CUSTOMER = "customer"
    SLURM = "slurm"


app = options.noun(
    "See the customers' jobs, and decide about those that do not go on by themselves.",
    example="job list --state running",
)


@app.command("list")
def list_(
    context: typer.Context,
    state: Annotated[
        list[State] | None,
        typer.Option(
            case_sensitive=False,
            metavar="STATE",
            help=f"Only in this state: {', '.join(State).lower()}; may be given several times.",
        ),
    ] = None,
    customer: Annotated[
        str | None,
        typer.Option(help="Only of the customer whose address begins like this."),
    ] = None,
    since: options.Since = None,
    sort: Annotated[JobSort, typer.Option(help="The order.")] = JobSort.AGE,
    limit: options.Limit = 100,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """List the jobs that are neither settled nor given back, or those in a state, the
    latest first.

    Example: supervisor job list --state RUNNING --customer 0x506a --since 2h
    """
    cli = cli_context(context)
    states = tuple(one.value for one in state or ())
    wanted = JobFilter(
        states, options.hex_beginning(customer), options.age(since), sort.value, limit
    )
    form = with_outcome if output in (Format.TABLE, Format.WIDE) else dict
    view = JOBS if states else replace(JOBS, title="jobs that are not settled")
    cli.present(
        view,
        lambda: [form(row) for row in cli.overview.jobs(wanted)],
        output,
        watch,
        no_color,
    )


def with_outcome(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's row with its outcome in words: how it has ended, and why; before
    the end, its status message.
    """
    return {
        **row,
        "outcome": ": ".join(filter(None, (row["outcome_status"], row["reason"]))),
    }


@app.command()
def show(
    context: typer.Context,
    job: job_actions.JobName,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """Show a job's whole timeline: what happened, when, how long it took, what
    comes next; wide: with all details.

    Example: supervisor job show slurm:1234
    """
    cli = cli_context(context)
    cli.present_by(lambda: show_job(cli, job, output), watch, no_color)


def show_job(cli: CliContext, name: str, output: Format) -> None:
    """Print a job's timeline in a form."""
    found = cli.job(name)
    facts, timeline = (
        cli.overview.job(found.job_id),
        cli.overview.timeline(found.job_id),
    )
    bill = bill_of(cli, found)

    def show(wide: bool) -> None:
        now, url = cli.overview.now(), cli.settings.explorer_url
        cli.shown.facts(facts_of(found, facts, now, timeline) | bill.facts())
        cli.shown.title("what happened")
        cli.shown.lines(lines_of(timeline, details=wide, transaction_url=url))
        cli.shown.title("what comes next")
        cli.shown.lines(next_of(found, timeline, now))

    document = {"job": facts, "bill": bill.document(), "timeline": timeline}
    cli.shown.one(document, found.job_id, output, show)


def bill_of(cli: CliContext, job: Job) -> Bill:
    """Return a job's bill at the prices of its assignment, and what was paid for it."""
    paid = Earnings(cli.ledger.engine, cli.ledger.cluster).total(
        EarningsFilter(job.job_id)
    )
    claimed_at = cli.overview.job(job.job_id)["created_at"]
    registered = Registrations(cli.ledger.facts).registered_prices()
    prices = assigned_prices(job, claimed_at, registered, paid.earned_wei)
    return Bill(job, prices, paid.earned_wei, paid.fees_wei)


app.command("retry")(job_actions.retry)
app.command("cancel")(job_actions.cancel)
app.command("settle")(job_actions.settle)
app.command("resubmit")(job_actions.resubmit)
app.command("adopt")(job_actions.adopt)
app.command("mark-lost")(job_actions.mark_lost)

COMMANDS = {"job": app}
