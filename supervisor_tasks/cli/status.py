"""`supervisor status`: how it stands with the cluster."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.alarm import ALARMS, summary_of
from supervisor_tasks.cli.context import CliContext, desk_of
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.output import Output
from supervisor_tasks.cli.views import Cell, Column, View, span
from supervisor_tasks.ledger.status_queries import StatusSummary
from supervisor_tasks.monitoring.metrics import oldest_due_s

JOBS = View("jobs", "state", (Column("JOBS", "state", "state"), Column("NUMBER", "jobs", "number")))
EFFECTS = View(
    "left to do",
    "kind",
    (
        Column("LEFT_TO_DO", "kind"),
        *(Column(name.upper(), name, "number") for name in ("due", "waiting", "leased", "failing", "parked")),
        Column("OLDEST_DUE", "oldest_due_s", "span"),
    ),
)
TICKS = View("periodic work", "name", (Column("PERIODIC_WORK", "name"), Column("LAST_ENDED", "age_s", "span")))
app = options.single()


@app.command()
def status(
    context: typer.Context,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """Show how it stands: health, jobs, what is left to do, alarms, the wallet; wide: also the periodic work.

    Example: supervisor status --watch 2
    """
    desk = desk_of(context)
    desk.shown.color = not no_color
    desk.shown.repeated(lambda: _show(desk, output), watch)


def _show(desk: CliContext, output: Format) -> None:
    snapshot = desk.overview.snapshot()
    complaints = desk.complaints(snapshot)
    if output in (Format.JSON, Format.YAML):
        desk.shown.document(asdict(snapshot) | {"complaints": complaints}, output)
    elif output is Format.NAME:
        typer.echo(snapshot.cluster)
    else:
        show_status(desk.shown, snapshot, complaints, desk.now(), wide=output is Format.WIDE)


def show_status(
    shown: Output, snapshot: StatusSummary, complaints: Sequence[str], now: datetime, *, wide: bool
) -> None:
    """Print the state of the cluster as tables."""
    shown.facts(facts_of(snapshot, complaints))
    tables: list[tuple[View, list[dict[str, Any]]]] = [
        (JOBS, [{"state": state, "jobs": number} for state, number in snapshot.jobs.items()]),
        (EFFECTS, [asdict(count) for count in snapshot.effects]),
        (ALARMS, [asdict(alarm) | {"summary": summary_of(alarm.details)} for alarm in snapshot.alarms]),
    ]
    if wide:
        tables.append((TICKS, [{"name": name, "age_s": age_s} for name, age_s in snapshot.ticks_s.items()]))
    for view, rows in tables:
        shown.blank()
        shown.table(view, rows, now, wide=wide)


def facts_of(snapshot: StatusSummary, complaints: Sequence[str]) -> dict[str, Cell]:
    """Return the values that the cluster has only once."""
    wallet = snapshot.wallet
    open_transactions = sum(snapshot.transactions.values())
    texts = {
        "claims": Cell("paused by an operator", "yellow") if snapshot.claiming_paused else Cell("on"),
        "submissions": Cell("paused: `supervisor cluster show`", "yellow") if snapshot.held else Cell("on"),
        "provider": "" if snapshot.standing is None else snapshot.standing.value,
        "oldest due effect": span(oldest_due_s(snapshot.effects)),
        "unread callbacks": str(sum(snapshot.unread_callbacks.values())),
        "open transactions": str(open_transactions)
        + (f", the oldest {span(snapshot.oldest_transaction_s)}" if open_transactions else ""),
        "wallet": "unused" if wallet is None else f"{wallet.address}, next nonce {wallet.next_nonce}",
        "RPC endpoints": ", ".join(f"{name} {health}" for name, health in snapshot.endpoints.items())
        or "none was asked",
        "last sweep": "none" if snapshot.last_sweep is None else f"ended {span(snapshot.since_sweep_s)} ago",
        "chain read up to": ", ".join(f"{stream} {block}" for stream, block in snapshot.cursors.items()),
    }
    health = Cell("; ".join(complaints), "red") if complaints else Cell("everything periodic comes to an end", "green")
    shown = {name: value if isinstance(value, Cell) else Cell(value) for name, value in texts.items()}
    return {"cluster": Cell(snapshot.cluster), "health": health} | shown


COMMANDS = {"status": app}
