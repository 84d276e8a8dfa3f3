"""`supervisor sweep`: the comparison of ledger, contract and SLURM."""

import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.cli_context import CliContext, cli_context
from supervisor_tasks.cli.exit_codes import CommandError
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.output import Output
from supervisor_tasks.cli.views import Column, View, span
from supervisor_tasks.cli.wording import counted, listed
from supervisor_tasks.ledger.reconciliations import Reconciliation
from supervisor_tasks.reconciliation.snapshot import DiscrepancyKind

POLL_S = 0.2
SWEEPS = View(
    "sweeps",
    "id",
    (
        Column("SWEEP", "id", "number"),
        Column("BEGUN", "begun_at", "age"),
        Column("TOOK", "took_s", "span"),
        Column("WHY", "why", flexible=True),
        Column("COMPARED", "compared", wide=True),
        Column("FOUND", "found", flexible=True),
        Column("NOT_SEEN", "unseen", flexible=True),
    ),
)
DISCREPANCIES = View(
    "discrepancies",
    "job_id",
    (
        Column("JOB", "job_id", "id"),
        Column("SLURM", "slurm_id", "number"),
        Column("FOUND", "found", flexible=True),
        Column("RECORDED", "done", flexible=True),
        Column("CANCELLED", "cancelled", wide=True),
    ),
)
KIND_TEXTS: Mapping[str, str] = {
    DiscrepancyKind.FINAL_ON_CHAIN: "over on the contract",
    DiscrepancyKind.REASSIGNED_ON_CHAIN: "not ours on the contract",
    DiscrepancyKind.AHEAD_ON_CHAIN: "running on the contract",
    DiscrepancyKind.NOT_ON_CHAIN: "unknown to the contract",
    DiscrepancyKind.END_NOT_RECORDED: "ended in SLURM, not recorded",
    DiscrepancyKind.LIMIT_LOST: "old time limit in SLURM",
    DiscrepancyKind.RUNS_AGAIN: "requeued by SLURM",
    DiscrepancyKind.RUN_NOT_RECORDED: "running in SLURM, not recorded",
    DiscrepancyKind.MORE_THAN_PAID: "more than was paid for",
    DiscrepancyKind.MISSING: "missing in SLURM",
    DiscrepancyKind.LOST: "lost by SLURM",
    DiscrepancyKind.FORGOTTEN: "forgotten before it ran",
    DiscrepancyKind.NEEDS_OPERATOR: "missing, left to you",
    DiscrepancyKind.CONTRADICTED: "running by accounting alone, left to you",
    DiscrepancyKind.ADOPTED: "found in SLURM, taken in",
    DiscrepancyKind.FOREIGN_CLAIM: "claimed by another ledger",
    DiscrepancyKind.NEVER_SEEN: "claimed, new to the ledger",
    DiscrepancyKind.EFFECT_MISSING: "without its open effect",
    DiscrepancyKind.RUNS_AFTER_END: "requeued after its end",
    DiscrepancyKind.ORPHAN_RUNNING: "in SLURM after its end",
    DiscrepancyKind.DUPLICATE: "in SLURM twice",
    DiscrepancyKind.UNIDENTIFIED: "in SLURM, resembles ours",
}
"""What a sweep can find, in words that follow a number."""
CAMEL = re.compile(r"(?<!^)(?=[A-Z])")
app = options.noun(
    "Compare ledger, contract and SLURM, and see what was found and done.",
    example="sweep show",
)


@app.command()
def run(
    context: typer.Context,
    wait_s: Annotated[
        float,
        typer.Option(min=0, help="Wait this many seconds at most for the report."),
    ] = 120.0,
    reason: options.Reason = "",
    yes: options.Yes = False,
    output: options.Output = Format.TABLE,
    no_color: options.NoColor = False,
) -> None:
    """Have a worker compare ledger, contract and SLURM now, and mend what differs; the
    command shows the report.

    Example: supervisor sweep run --yes
    """
    cli = cli_context(context)
    cli.shown.color = not no_color
    open_jobs = sum(cli.overview.snapshot().jobs.values())
    will = f"{open_jobs} open jobs will be compared with the contract and SLURM, and what differs will be mended"
    with cli.change("sweep run", "all open jobs", will, yes=yes, reason=reason):
        requested_at = cli.reconciliations.request(reason or "the operator")
    _show(cli, _begun_after(cli, requested_at, wait_s), output)


def _begun_after(
    cli: CliContext, requested_at: datetime, wait_s: float
) -> Reconciliation:
    """Wait for a sweep that began after the request; an earlier one has not seen what
    it is about. Raises CommandError.
    """
    deadline = time.monotonic() + wait_s
    while True:
        for found in cli.reconciliations.last():
            if found.begun_at >= requested_at:
                return found
        if time.monotonic() > deadline:
            raise CommandError(
                f"found no report of a sweep that began after the request within {wait_s:g} s; expected one: see `supervisor"
                " health`, then `supervisor sweep show`"
            )
        time.sleep(POLL_S)  # the report is a row, and no event reports a new row


@app.command("list")
def list_(
    context: typer.Context,
    since: options.Since = None,
    limit: options.Limit = 20,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """List the last sweeps, the newest first.

    Example: supervisor sweep list --limit 3 -o json
    """
    cli = cli_context(context)
    form = _listed_row if output in (Format.TABLE, Format.WIDE) else _row
    younger = options.age(since)

    def rows() -> list[dict[str, Any]]:
        begin = cli.begin_of(younger)
        sweeps = cli.reconciliations.last(limit)
        return [
            form(sweep) for sweep in sweeps if begin is None or sweep.begun_at >= begin
        ]

    cli.present(SWEEPS, rows, output, watch, no_color)


@app.command()
def show(
    context: typer.Context,
    sweep: Annotated[
        int | None,
        typer.Argument(metavar="SWEEP", help="Its number; else the last one."),
    ] = None,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """Show what a sweep looked at, found and did.

    Example: supervisor sweep show
    """
    cli = cli_context(context)
    cli.present_by(lambda: _show(cli, _found(cli, sweep), output), watch, no_color)


def _found(cli: CliContext, sweep: int | None) -> Reconciliation:
    """Return the sweep of this number, or the last one. Raises CommandError."""
    if sweep is None:
        found = cli.reconciliations.last()
    else:
        found = cli.reconciliations.numbered(sweep)
    if found:
        return found[0]
    raise CommandError(
        "found no such sweep; see `supervisor sweep list`, or ask for one by `supervisor sweep run`"
    )


def _show(cli: CliContext, sweep: Reconciliation, output: Format) -> None:
    cli.shown.one(
        _row(sweep),
        sweep.id,
        output,
        lambda wide: show_sweep(cli.shown, sweep, cli.now(), wide=wide),
    )


def show_sweep(
    shown: Output, sweep: Reconciliation, now: datetime, *, wide: bool = False
) -> None:
    """Print what a sweep looked at, found and did."""
    shown.facts(facts_of(sweep, now))
    discrepancies = sweep.report.get("discrepancies", [])
    if discrepancies:
        shown.title("discrepancies")
        shown.table(
            DISCREPANCIES,
            [_discrepancy(discrepancy) for discrepancy in discrepancies],
            now,
            wide=wide,
        )


def facts_of(sweep: Reconciliation, now: datetime) -> dict[str, str]:
    """Return the values that a sweep has only once; a report of another release may
    lack some.
    """
    report = sweep.report
    age_s = (now - sweep.begun_at).total_seconds()
    cancelled, due = "", ""
    if report.get("cancelled"):
        cancelled = counted(report["cancelled"], "job in SLURM", "jobs in SLURM")
    if report.get("again_s") is not None:
        due = next_at(age_s, report["again_s"])
    return {
        "sweep": f"{sweep.id}, begun {span(age_s)} ago, took {span(took_s(sweep))}",
        "why": report.get("why", ""),
        "compared": compared(report),
        "not seen": _reasons(report.get("unseen", {})),
        "found": found_by(report),
        "cancelled": cancelled,
        "not cancelled": _reasons(report.get("not_cancelled", {})),
        "left to you": _left(report.get("needs_operator", {})),
        "stalled": _stale(report.get("stale", {})),
        "next": due,
    }


def compared(report: Mapping[str, Any]) -> str:
    """Return how many jobs of each side a sweep compared."""
    sides = {
        "the ledger": report.get("jobs"),
        "SLURM": report.get("slurm_jobs"),
        "the contract": report.get("on_chain"),
    }
    text = ", ".join(
        f"{counted(number, 'job')} of {side}"
        for side, number in sides.items()
        if number is not None
    )
    block = report.get("block")
    if block is not None:
        text += f", at block {block}"
    return text


def found_by(report: Mapping[str, Any]) -> str:
    """Return what a sweep found, and how often."""
    found = report.get("found", {})
    numbers = "; ".join(f"{number} {_kind(kind)}" for kind, number in found.items())
    return numbers or "no difference"


def next_at(age_s: float, again_s: float) -> str:
    """Return when the next sweep is due."""
    if again_s > age_s:
        return f"due in {span(again_s - age_s)} at the latest"
    return f"due for {span(age_s - again_s)}"


def _stale(stale: Mapping[str, Any]) -> str:
    """Return what is stalled, with its numbers; those that are 0 are left out."""
    return listed({name: number for name, number in stale.items() if number})


def _left(jobs: Mapping[str, Any]) -> str:
    if not jobs:
        return ""
    return f"{counted(len(jobs), 'job')} that SLURM does not know: see the alarm sweep_contradiction"


def _discrepancy(discrepancy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a discrepancy: its kind, and the names of the events that were
    recorded, in words.
    """
    done = ", ".join(
        CAMEL.sub(" ", event).lower() for event in discrepancy.get("done", [])
    )
    return {
        **discrepancy,
        "found": _kind(str(discrepancy.get("found", ""))),
        "done": done.replace("slurm", "SLURM"),
    }


def _kind(kind: str) -> str:
    return KIND_TEXTS.get(kind, kind.replace("_", " "))


def _reasons(errors: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {error}" for name, error in errors.items())


def _row(sweep: Reconciliation) -> dict[str, object]:
    return asdict(sweep) | {"took_s": took_s(sweep)}


def _listed_row(sweep: Reconciliation) -> dict[str, object]:
    """Return the row of a table: it sums the report up. Documents have the whole
    report.
    """
    report = sweep.report
    return _row(sweep) | {
        "why": report.get("why", ""),
        "compared": compared(report),
        "found": found_by(report),
        "unseen": _reasons(report.get("unseen", {})),
    }


def took_s(sweep: Reconciliation) -> float:
    """Return how long the sweep took."""
    return (sweep.finished_at - sweep.begun_at).total_seconds()


COMMANDS = {"sweep": app}
