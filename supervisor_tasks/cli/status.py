"""`supervisor status`: the state of the cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import typer

from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.cli import options
from supervisor_tasks.cli.alarm import ALARMS, summary_of
from supervisor_tasks.cli.claim_stops import slurm_answers
from supervisor_tasks.cli.cli_context import CliContext, cli_context
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.output import Output
from supervisor_tasks.cli.sweep import found_by
from supervisor_tasks.cli.views import Cell, Column, View, span
from supervisor_tasks.cli.wording import coins, counted, joined
from supervisor_tasks.ledger.earnings import Earnings
from supervisor_tasks.ledger.facts import BALANCE
from supervisor_tasks.ledger.periodic_run_names import IDLE_S, SCANNED
from supervisor_tasks.ledger.status_queries import StatusSummary, StoredReading, Writer
from supervisor_tasks.monitoring.slurm_tries import SLURM_ANSWERED
from supervisor_tasks.observability.health import MISSED_INTERVALS
from supervisor_tasks.observability.metrics import oldest_due_s
from supervisor_tasks.provider.offer import format_credits

JOBS = View(
    "jobs",
    "state",
    (Column("JOBS", "state", "state"), Column("NUMBER", "jobs", "number")),
)
EFFECTS = View(
    "left to do",
    "kind",
    (
        Column("LEFT_TO_DO", "kind"),
        *(
            Column(name.upper(), name, "number")
            for name in ("due", "waiting", "leased", "failing", "parked")
        ),
        Column("OLDEST_DUE", "oldest_due_s", "span"),
    ),
)
PERIODIC_RUNS = View(
    "periodic work",
    "name",
    (Column("PERIODIC_WORK", "name"), Column("LAST_ENDED", "age_s", "span")),
)
LOGS = "contract"  # the cursor of the contract's logs
# a reading is made at least every 15 s; an older one is shown with its age
FRESH_S = 30.0
app = options.single()


@app.command()
def status(
    context: typer.Context,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """Show the cluster's state: health, jobs, what is left to do, alarms, the wallet;
    wide: also the periodic work.

    Example: supervisor status --watch 2
    """
    cli = cli_context(context)
    cli.present_by(lambda: _show(cli, output), watch, no_color)


@dataclass(frozen=True, slots=True)
class WalletSummary:
    """The wallet's coins for gas as a worker last saw them, None before that; and the
    credits and paid jobs of today.
    """

    balance_wei: int | None
    earned_wei: int
    jobs: int


def wallet_summary(cli: CliContext) -> WalletSummary:
    """Return what the wallet holds, and what was paid today."""
    balance = cli.ledger.facts.get(BALANCE)
    earned_wei, jobs = Earnings(cli.ledger.engine, cli.ledger.cluster).today()
    return WalletSummary(None if balance is None else balance.wei, earned_wei, jobs)


@dataclass(frozen=True, slots=True)
class StatusProblems:
    """What the command concludes: what is wrong, why no job is claimed now, and what
    the wallet holds and earned.
    """

    problems: Sequence[str]
    claim_stops: Sequence[str]
    wallet: WalletSummary


def problems_of(cli: CliContext, snapshot: StatusSummary) -> StatusProblems:
    """Judge the state of the cluster."""
    return StatusProblems(
        cli.problems(snapshot), cli.claim_stops(snapshot), wallet_summary(cli)
    )


def _show(cli: CliContext, output: Format) -> None:
    snapshot = cli.overview.snapshot()
    concluded = problems_of(cli, snapshot)
    cli.shown.one(
        asdict(snapshot) | _document(snapshot, concluded),
        snapshot.cluster,
        output,
        lambda wide: show_status(cli.shown, snapshot, concluded, cli.now(), wide=wide),
    )


def _document(snapshot: StatusSummary, concluded: StatusProblems) -> dict[str, Any]:
    """Return the concluded for programs. The wei are text, as numbers of JSON are not
    exact.
    """
    wallet = concluded.wallet
    balance_wei: str | None = None
    if wallet.balance_wei is not None:
        balance_wei = str(wallet.balance_wei)
    claimable_jobs: int | None = None
    if snapshot.claimable is not None:
        claimable_jobs = snapshot.claimable.number
    return {
        "balance_wei": balance_wei,
        "earned_today_wei": str(wallet.earned_wei),
        "claims": not concluded.claim_stops,
        "claimable_jobs": claimable_jobs,
        "why_no_claims": list(concluded.claim_stops),
        "lag_blocks": lag_blocks(snapshot),
        "problems": list(concluded.problems),
    }


def show_status(
    shown: Output,
    snapshot: StatusSummary,
    concluded: StatusProblems,
    now: datetime,
    *,
    wide: bool,
) -> None:
    """Print the state of the cluster as tables."""
    shown.facts(facts_of(snapshot, concluded))

    def show_table(view: View, rows: Sequence[Mapping[str, Any]]) -> None:
        shown.blank()
        shown.table(view, rows, now, wide=wide)

    show_table(
        JOBS,
        [{"state": state, "jobs": number} for state, number in snapshot.jobs.items()],
    )
    show_table(EFFECTS, [asdict(count) for count in snapshot.effects])
    show_table(
        ALARMS,
        [
            asdict(alarm) | {"summary": summary_of(alarm.name, alarm.details)}
            for alarm in snapshot.alarms
        ],
    )
    if wide:
        show_table(
            PERIODIC_RUNS,
            [
                {"name": name, "age_s": age_s}
                for name, age_s in snapshot.periodic_run_ages_s.items()
            ],
        )


def facts_of(snapshot: StatusSummary, concluded: StatusProblems) -> dict[str, Cell]:
    """Return the values that the cluster has only once."""
    problems, wallet = concluded.problems, concluded.wallet
    endpoints = (f"{name} {state}" for name, state in snapshot.endpoints.items())
    earned = format_credits(wallet.earned_wei)
    submissions, provider = Cell("on"), Cell("")
    if snapshot.submissions_paused:
        submissions = Cell("paused: `supervisor cluster show`", "yellow")
    if snapshot.registration_status is not None:
        provider = Cell(snapshot.registration_status.value)
    if problems:
        health = Cell("; ".join(problems), "red")
    else:
        health = Cell("everything periodic comes to an end", "green")
    return {
        "cluster": Cell(snapshot.cluster),
        "health": health,
        "claims": _claims(snapshot, concluded.claim_stops),
        "submissions": submissions,
        "provider": provider,
        "oldest due effect": Cell(span(oldest_due_s(snapshot.effects))),
        "unread callbacks": Cell(str(sum(snapshot.unread_callbacks.values()))),
        "open transactions": Cell(_open_transactions(snapshot)),
        "wallet": Cell(_wallet(snapshot.wallet, wallet)),
        "earned today": Cell(
            f"{earned} credits from {counted(wallet.jobs, 'paid job')} (UTC's day)"
        ),
        "RPC endpoints": Cell(joined(endpoints, "none was asked")),
        "last sweep": _sweep(snapshot),
        "chain head": _head(snapshot.head, snapshot.cursors.get(LOGS, 0)),
        "chain read up to": _read_up_to(snapshot),
        "queues": _queues(snapshot.queues),
        "SLURM": _slurm(snapshot),
    }


def _open_transactions(snapshot: StatusSummary) -> str:
    number = sum(snapshot.transactions.values())
    if number:
        return f"{number}, the oldest {span(snapshot.oldest_transaction_s)}"
    return "0"


def _sweep(snapshot: StatusSummary) -> Cell:
    """Return when the last sweep ended, and what it has found."""
    if snapshot.last_sweep is None:
        return Cell("none")
    ended = f"ended {span(snapshot.since_sweep_s)} ago"
    if not snapshot.last_sweep.report.get("found"):
        return Cell(ended)
    return Cell(
        f"{ended}, found {found_by(snapshot.last_sweep.report)}: `supervisor sweep show`",
        "yellow",
    )


def _head(head: StoredReading | None, read_up_to: int) -> Cell:
    """Return the chain's head. A block that was read since is a later one."""
    if head is None:
        return Cell("no worker has seen it yet", "yellow")
    return _dated(f"block {max(head.number, read_up_to)}", head)


def _read_up_to(snapshot: StatusSummary) -> Cell:
    """Return how far the chain was read, and when the last scan reached the head. An
    idle chain is scanned seldom.
    """
    block = snapshot.cursors.get(LOGS)
    if block is None:
        return Cell("nothing yet", "yellow")
    text = f"block {block}"
    lag = lag_blocks(snapshot)
    if lag is not None:
        text += f", {counted(lag, 'block')} behind the head"
    scanned_s = snapshot.periodic_run_ages_s.get(SCANNED)
    if scanned_s is None:
        return Cell(text, "yellow")
    style = "yellow" if scanned_s > MISSED_INTERVALS * IDLE_S[SCANNED] else ""
    return Cell(f"{text}; at the head {span(scanned_s)} ago", style)


def lag_blocks(snapshot: StatusSummary) -> int | None:
    """Return how many blocks of the chain are not read yet, up to the head that a
    worker last saw; None if not known.
    """
    block = snapshot.cursors.get(LOGS)
    if block is None or snapshot.head is None:
        return None
    return max(snapshot.head.number - block, 0)


def _queues(queues: Mapping[str, StoredReading]) -> Cell:
    """Return how many messages wait for workers in each queue. Beat counts all at
    once.
    """
    if not queues:
        return Cell("beat has not counted the messages yet", "yellow")
    waiting = ", ".join(f"{name} {reading.number}" for name, reading in queues.items())
    return _dated(
        f"messages: {waiting}", max(queues.values(), key=lambda reading: reading.age_s)
    )


def _slurm(snapshot: StatusSummary) -> Cell:
    if not slurm_answers(snapshot):
        return Cell("does not answer", "red")
    return Cell(f"answered {span(snapshot.periodic_run_ages_s[SLURM_ANSWERED])} ago")


def _dated(text: str, reading: StoredReading) -> Cell:
    """Return what was read, with its age if that is no longer the present state."""
    if reading.age_s <= FRESH_S:
        return Cell(text)
    return Cell(f"{text}; seen {span(reading.age_s)} ago", "yellow")


def _claims(snapshot: StatusSummary, stops: Sequence[str]) -> Cell:
    waiting = _claimable(snapshot.claimable)
    if not stops:
        claims = _slow_claims(snapshot)
        return Cell(f"{claims.text}{waiting}", claims.style)
    is_paused_only = len(stops) == 1 and snapshot.claiming_paused
    if is_paused_only:
        return Cell(f"{stops[0]}{waiting}", "yellow")
    return Cell(f"stopped: {'; '.join(stops)}{waiting}", "red")


def _claimable(reading: StoredReading | None) -> str:
    """Return how many jobs wait on the contract; empty if none does, or no worker has
    looked yet.
    """
    if reading is None or not reading.number:
        return ""
    jobs = counted(
        reading.number, "job waits on the contract", "jobs wait on the contract"
    )
    return f"; {_dated(jobs, reading).text}"


def _slow_claims(snapshot: StatusSummary) -> Cell:
    if any(alarm.name == AlarmName.CLAIMS_REVERTING for alarm in snapshot.alarms):
        return Cell("one is tried a minute: alarm claims_reverting", "red")
    return Cell("on")


def _wallet(writer: Writer | None, wallet: WalletSummary) -> str:
    if writer is None:
        return f"has signed nothing yet{_held(wallet)}"
    return f"{writer.address}{_held(wallet)}, next nonce {writer.next_nonce}"


def _held(wallet: WalletSummary) -> str:
    if wallet.balance_wei is None:
        return ""
    return f", holds {coins(wallet.balance_wei)} for gas"


COMMANDS = {"status": app}
