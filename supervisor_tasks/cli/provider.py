"""How the provider stands with the grid: what is registered, what waits for approval, what is offered."""

from collections.abc import Mapping
from typing import Any

import click

from supervisor_tasks.cli.desk import JSON, Desk
from supervisor_tasks.ledger.facts import Fact
from supervisor_tasks.ledger.provider import RUN_WANTED, WANTED, Registrations

REASON = click.option("--reason", default="the operator", show_default=True)
COLUMNS = ("registered", "waiting", "offered")


@click.group(invoke_without_command=True)
@JSON
@click.pass_context
def provider(context: click.Context, as_json: bool) -> None:
    """How the provider stands with the grid, what is registered, and what is offered."""
    if context.invoked_subcommand is None:
        _show(context.obj, as_json)


def _show(desk: Desk, as_json: bool) -> None:
    registrations = Registrations(desk.ledger.facts)
    known, told = registrations.standing(), registrations.told()
    if known is None or told is None:
        raise click.ClickException("found nothing yet; expected a worker of the chain queue to have looked: start one")
    standing, for_s = known
    asked = {what: why for what, why in _asked(registrations).items() if why}
    missed = registrations.why_no_nodes()
    if as_json:
        about = {"standing": standing.value, "for_s": for_s, "claims": standing.claims, "asked": asked}
        not_seen = None if missed is None else {"error": missed[0], "for_s": missed[1]}
        desk.shown.json(about | {"nodes_not_seen": not_seen} | told)
        return
    facts = {
        "address": told["address"],
        "stands": f"{standing.value} for {for_s:.0f} s",
        "new jobs": "are claimed" if standing.claims else "are not claimed",
        "next": f"{told['decision']}: {told['why']}",
        "nodes": "are seen" if missed is None else f"none is seen for {missed[1]:.0f} s: {missed[0]}",
        "benchmark": "a run is under way" if told["measuring"] else "no run is under way",
        "asked for": ", ".join(f"{what} ({why})" for what, why in asked.items()) or "nothing",
    }
    desk.shown.facts("provider", facts)
    desk.shown.table("offers", _side_by_side(told))
    desk.shown.table("odd", [{"what": line} for line in told["odd"]])


def _asked(registrations: Registrations) -> dict[str, str]:
    return {"register": registrations.asked(WANTED), "measure": registrations.asked(RUN_WANTED)}


def _side_by_side(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A line for each thing that can differ."""
    columns = {title: _lines(told[title]) for title in COLUMNS}
    names = dict.fromkeys(name for column in columns.values() for name in column)
    return [{"what": name, **{title: column.get(name) for title, column in columns.items()}} for name in names]


def _lines(offer: Mapping[str, Any] | None) -> dict[str, str]:
    if offer is None:
        return {}
    kinds = [f"{of['nodes']} with {of['cpus']} CPUs, {of['gpus']} GPUs, {of['mem_mb']} MB" for of in offer["machines"]]
    labels = {f"label {key}": value for key, value in offer["labels"].items()}
    return {"nodes": "; ".join(kinds), **offer["prices"], **labels}


@provider.command()
@REASON
@click.pass_obj
def register(desk: Desk, reason: str) -> None:
    """Register now what is offered: unmeasured, and also what the grid has turned down before."""
    _ask(desk, WANTED, reason)


@provider.command()
@REASON
@click.pass_obj
def measure(desk: Desk, reason: str) -> None:
    """Have the benchmarks run, and what they find registered."""
    if desk.settings.benchmark_disable:
        raise click.ClickException("found BENCHMARK_DISABLE=true; expected false: nothing is measured")
    _ask(desk, RUN_WANTED, reason)


def _ask(desk: Desk, what: Fact[str], reason: str) -> None:
    Registrations(desk.ledger.facts).ask(what, reason)
    click.echo("asked; `supervisor provider` tells what comes of it")


COMMANDS = (provider,)
