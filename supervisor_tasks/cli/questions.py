"""What is asked of the ledger: how it stands, the jobs, what is parked."""

from collections.abc import Sequence
from dataclasses import asdict

import click

from supervisor_tasks.cli.desk import JSON, Desk
from supervisor_tasks.job import State
from supervisor_tasks.ledger.overview import Snapshot
from supervisor_tasks.metrics import oldest_due_s


@click.command()
@JSON
@click.pass_obj
def status(desk: Desk, as_json: bool) -> None:
    """How it stands: jobs, things to do, alarms, the wallet, the ticks."""
    snapshot = desk.overview.snapshot()
    complaints = desk.complaints(snapshot)
    if as_json:
        desk.shown.json(asdict(snapshot) | {"complaints": complaints})
        return
    desk.shown.facts("cluster", _facts(snapshot, complaints))
    desk.shown.table("jobs", [{"state": state, "jobs": number} for state, number in snapshot.jobs.items()])
    desk.shown.table("things to do", [asdict(count) for count in snapshot.effects])
    desk.shown.table("alarms", [asdict(alarm) for alarm in snapshot.alarms])
    desk.shown.table("ticks", [{"name": name, "age_s": round(age_s, 1)} for name, age_s in snapshot.ticks_s.items()])


def _facts(snapshot: Snapshot, complaints: Sequence[str]) -> dict[str, object]:
    wallet = snapshot.wallet
    return {
        "name": snapshot.cluster,
        "health": "; ".join(complaints) or "everything periodic comes to an end",
        "claiming": "stopped by the operator" if snapshot.drained else "on",
        "submitting": "held, see `supervisor alarms`" if snapshot.held else "on",
        "oldest due effect": f"{oldest_due_s(snapshot.effects):.1f} s",
        "unread callbacks": sum(snapshot.unread_callbacks.values()),
        "open transactions": f"{sum(snapshot.transactions.values())}, the oldest {snapshot.oldest_transaction_s:.1f} s",
        "wallet": "unused" if wallet is None else f"{wallet.address}, next nonce {wallet.next_nonce}",
        "RPC endpoints": ", ".join(f"{name} {health}" for name, health in snapshot.endpoints.items())
        or "none was asked",
        "last sweep": "none" if snapshot.last_sweep is None else f"ended {snapshot.since_sweep_s:.0f} s ago",
        "chain read up to": ", ".join(f"{stream} {block}" for stream, block in snapshot.cursors.items()),
    }


@click.command()
@click.option("--state", type=click.Choice([state.value for state in State], case_sensitive=False))
@JSON
@click.pass_obj
def jobs(desk: Desk, state: str | None, as_json: bool) -> None:
    """The jobs that are not settled, or those in a state."""
    desk.shown.rows("jobs", desk.overview.jobs(None if state is None else state.upper()), as_json)


@click.command()
@click.argument("job_id", metavar="JOB")
@JSON
@click.pass_obj
def job(desk: Desk, job_id: str, as_json: bool) -> None:
    """The whole story of a job, in the order in which it happened. The beginning of its id suffices."""
    found = desk.job(job_id)
    facts, story = desk.overview.job(found.job_id), desk.overview.story(found.job_id)
    if as_json:
        desk.shown.json({"job": facts, "story": story})
        return
    desk.shown.facts("job", facts)
    desk.shown.table("story", story)


@click.command()
@JSON
@click.pass_obj
def parked(desk: Desk, as_json: bool) -> None:
    """What cannot go on by itself, why, and what was seen."""
    desk.shown.rows("parked", desk.overview.parked(), as_json)


@click.command()
@JSON
@click.pass_obj
def alarms(desk: Desk, as_json: bool) -> None:
    """What the operator is called for."""
    desk.shown.rows("alarms", [asdict(alarm) for alarm in desk.ledger.alarms.all()], as_json)


@click.command()
@click.option("--last", type=click.IntRange(1), default=20, show_default=True)
@JSON
@click.pass_obj
def sweeps(desk: Desk, last: int, as_json: bool) -> None:
    """The last sweeps, the newest first."""
    desk.shown.rows("sweeps", [asdict(one) for one in desk.sweeps.last(last)], as_json)


@click.command()
@click.option("--open", "only_open", is_flag=True, help="Only those that are not known to be mined.")
@JSON
@click.pass_obj
def transactions(desk: Desk, only_open: bool, as_json: bool) -> None:
    """The wallet's transactions, the latest first."""
    desk.shown.rows("transactions", desk.overview.transactions(only_open), as_json)


COMMANDS = (status, jobs, job, parked, alarms, sweeps, transactions)
