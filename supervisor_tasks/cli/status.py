"""`supervisor status`: how it stands with the cluster."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.alarm import ALARMS, summary_of
from supervisor_tasks.cli.context import CliContext, counted, desk_of
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.output import Output
from supervisor_tasks.cli.views import Cell, Column, View, span
from supervisor_tasks.ledger.alarm_meanings import STOPS_CLAIMS
from supervisor_tasks.ledger.earnings import Earnings
from supervisor_tasks.ledger.facts import BALANCE
from supervisor_tasks.ledger.status_queries import StatusSummary, Writer
from supervisor_tasks.ledger.tick_names import SCANNED
from supervisor_tasks.monitoring.metrics import oldest_due_s
from supervisor_tasks.monitoring.slurm_tries import ANSWERED
from supervisor_tasks.provider.offer import format_credits, rounded_credits

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


@dataclass(frozen=True, slots=True)
class Purse:
    """The wallet's coins for gas as a worker last saw them, None before that; and the credits and jobs of the day."""

    balance_wei: int | None
    earned_wei: int
    jobs: int


def purse_of(desk: CliContext) -> Purse:
    """Return what the wallet holds, and what the day has brought."""
    balance = desk.ledger.facts.get(BALANCE)
    earned_wei, jobs = Earnings(desk.ledger.engine, desk.ledger.cluster).today()
    return Purse(None if balance is None else balance.wei, earned_wei, jobs)


def _show(desk: CliContext, output: Format) -> None:
    snapshot = desk.overview.snapshot()
    complaints, purse = desk.complaints(snapshot), purse_of(desk)
    if output in (Format.JSON, Format.YAML):
        desk.shown.document(asdict(snapshot) | _document(purse) | {"complaints": complaints}, output)
    elif output is Format.NAME:
        typer.echo(snapshot.cluster)
    else:
        show_status(desk.shown, snapshot, complaints, purse, desk.now(), wide=output is Format.WIDE)


def _document(purse: Purse) -> dict[str, str | None]:
    """Return the purse for programs. The wei are text, as numbers of JSON are not exact."""
    balance = None if purse.balance_wei is None else str(purse.balance_wei)
    return {"balance_wei": balance, "earned_today_wei": str(purse.earned_wei)}


def show_status(
    shown: Output, snapshot: StatusSummary, complaints: Sequence[str], purse: Purse, now: datetime, *, wide: bool
) -> None:
    """Print the state of the cluster as tables."""
    shown.facts(facts_of(snapshot, complaints, purse))
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


def facts_of(snapshot: StatusSummary, complaints: Sequence[str], purse: Purse) -> dict[str, Cell]:
    """Return the values that the cluster has only once."""
    open_transactions = sum(snapshot.transactions.values())
    texts = {
        "claims": _claims(snapshot),
        "submissions": Cell("paused: `supervisor cluster show`", "yellow") if snapshot.held else Cell("on"),
        "provider": "" if snapshot.standing is None else snapshot.standing.value,
        "oldest due effect": span(oldest_due_s(snapshot.effects)),
        "unread callbacks": str(sum(snapshot.unread_callbacks.values())),
        "open transactions": str(open_transactions)
        + (f", the oldest {span(snapshot.oldest_transaction_s)}" if open_transactions else ""),
        "wallet": _wallet(snapshot.wallet, purse),
        "earned today": f"{format_credits(purse.earned_wei)} credits from {counted(purse.jobs, 'paid job')} (UTC's day)",
        "RPC endpoints": ", ".join(f"{name} {health}" for name, health in snapshot.endpoints.items())
        or "none was asked",
        "last sweep": "none" if snapshot.last_sweep is None else f"ended {span(snapshot.since_sweep_s)} ago",
        "chain read up to": _read_up_to(snapshot),
        "SLURM": Cell("answers") if ANSWERED in snapshot.ticks_s else Cell("does not answer", "red"),
    }
    health = Cell("; ".join(complaints), "red") if complaints else Cell("everything periodic comes to an end", "green")
    shown = {name: value if isinstance(value, Cell) else Cell(value) for name, value in texts.items()}
    return {"cluster": Cell(snapshot.cluster), "health": health} | shown


def _read_up_to(snapshot: StatusSummary) -> str:
    """Return the block of each stream, and when the last scan reached the head. An idle chain is scanned seldom."""
    blocks = ", ".join(f"{stream} {block}" for stream, block in snapshot.cursors.items())
    scanned_s = snapshot.ticks_s.get(SCANNED)
    return blocks if scanned_s is None else f"{blocks}; at the head {span(scanned_s)} ago"


def _claims(snapshot: StatusSummary) -> Cell:
    if snapshot.claiming_paused:
        return Cell("paused by an operator", "yellow")
    stopped = ", ".join(alarm.name for alarm in snapshot.alarms if alarm.name in STOPS_CLAIMS)
    return Cell(f"stopped while an alarm is on: {stopped}", "red") if stopped else Cell("on")


def _wallet(wallet: Writer | None, purse: Purse) -> str:
    if wallet is None:
        return f"has signed nothing yet{_held(purse)}"
    return f"{wallet.address}{_held(purse)}, next nonce {wallet.next_nonce}"


def _held(purse: Purse) -> str:
    return "" if purse.balance_wei is None else f", holds {rounded_credits(purse.balance_wei)} for gas"


COMMANDS = {"status": app}
