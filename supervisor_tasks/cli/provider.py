"""The commands for the provider: what is registered, what waits for approval, what is
offered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import typer

from supervisor_tasks.cli import options
from supervisor_tasks.cli.cli_context import CliContext, cli_context
from supervisor_tasks.cli.exit_codes import CommandError
from supervisor_tasks.cli.options import Format
from supervisor_tasks.cli.output import Output
from supervisor_tasks.cli.views import Cell, Column, View, span
from supervisor_tasks.cli.wording import counted, joined
from supervisor_tasks.ledger.facts import Fact
from supervisor_tasks.ledger.registrations import (
    MEASUREMENT_REQUESTED,
    REGISTRATION_REQUESTED,
    Registrations,
)
from supervisor_tasks.provider.registration_rules import RegistrationStatus

COLUMNS = ("registered", "waiting", "offered")
OFFERS = View(
    "offers",
    "what",
    (
        Column("WHAT", "what"),
        *(Column(title.upper(), title, flexible=True) for title in COLUMNS),
    ),
)
PRICES = {
    "gpu_credits_per_min": "GPU, credits/min",
    "cpu_credits_per_min": "CPU, credits/min",
    "mem_credits_per_min": "MB, credits/min",
}
NOT_LOOKED = (
    "found nothing yet; expected a worker of the chain queue to have looked: start one"
)
app = options.noun(
    "See the registration of the provider, and have it registered or measured.",
    example="provider show",
)


@app.command()
def show(
    context: typer.Context,
    output: options.Output = Format.TABLE,
    watch: options.Watch = None,
    no_color: options.NoColor = False,
) -> None:
    """Show the status of the registration, what is registered, what waits for
    approval, and what is offered.

    Example: supervisor provider show
    """
    cli = cli_context(context)
    cli.present_by(lambda: _show(cli, output), watch, no_color)


def _show(cli: CliContext, output: Format) -> None:
    registrations = Registrations(cli.ledger.facts)
    status_and_age, decision = registrations.status(), registrations.last_decision()
    if status_and_age is None or decision is None:
        raise CommandError(NOT_LOOKED)
    status, for_s = status_and_age
    summary = RegistrationSummary(
        status, for_s, _asked(registrations), registrations.why_no_nodes()
    )
    cli.shown.one(
        _document(summary) | decision,
        decision["address"],
        output,
        lambda wide: show_provider(cli.shown, decision, summary, cli.now(), wide=wide),
    )


@dataclass(frozen=True, slots=True)
class RegistrationSummary:
    """The registration's status, and for how many seconds it has been so. `asked` is
    what an operator has asked for, with the reason. `no_nodes` is why a worker has seen
    no node, and for how many seconds.
    """

    status: RegistrationStatus
    for_s: float
    asked: Mapping[str, str]
    no_nodes: tuple[str, float] | None = None


def _document(summary: RegistrationSummary) -> dict[str, Any]:
    """Return the registration's status, for programs."""
    no_nodes = None
    if summary.no_nodes is not None:
        error, for_s = summary.no_nodes
        no_nodes = {"error": error, "for_s": for_s}
    return {
        "registration_status": summary.status.value,
        "for_s": summary.for_s,
        "claims": summary.status.claims,
        "asked": summary.asked,
        "no_usable_nodes": no_nodes,
    }


def show_provider(
    shown: Output,
    decision: Mapping[str, Any],
    summary: RegistrationSummary,
    now: datetime,
    *,
    wide: bool,
) -> None:
    """Print the registration's status, and the offers side by side."""
    shown.facts(facts_of(decision, summary))
    shown.title("offers")
    shown.table(OFFERS, _side_by_side(decision), now, wide=wide)
    if decision["warnings"]:
        shown.title("look at")
        shown.lines([[Cell(line, "yellow")] for line in decision["warnings"]])


def facts_of(
    decision: Mapping[str, Any], summary: RegistrationSummary
) -> dict[str, str | Cell]:
    """Return the lines about the provider."""
    asked = (f"{what} ({why})" for what, why in summary.asked.items())
    run = "a run" if decision["measuring"] else "no run"
    claims = Cell("are allowed")
    if not summary.status.claims:
        claims = Cell("are not allowed", "red")
    return {
        "address": decision["address"],
        "registration": f"{summary.status.value}, for {span(summary.for_s)}",
        "claims": claims,
        "next": f"{decision['decision']}: {decision['why']}",
        "nodes": _nodes(summary.no_nodes),
        "benchmarks": f"{run} is under way",
        "asked for": joined(asked, "nothing"),
    }


def _nodes(no_nodes: tuple[str, float] | None) -> str | Cell:
    if no_nodes is None:
        return "are seen"
    error, for_s = no_nodes
    return Cell(f"none for {span(for_s)}: {error}", "red")


def _asked(registrations: Registrations) -> dict[str, str]:
    """Return what an operator has asked for and no worker has done yet, with the
    reason.
    """
    reasons = {
        "register": registrations.asked(REGISTRATION_REQUESTED),
        "measure": registrations.asked(MEASUREMENT_REQUESTED),
    }
    return {what: reason for what, reason in reasons.items() if reason}


def _side_by_side(decision: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each value that can differ between offer, request and
    registration.
    """
    rows = dict[str, dict[str, Any]]()
    for title in COLUMNS:
        for name, value in _lines(decision[title]).items():
            row = rows.setdefault(name, {"what": name} | dict.fromkeys(COLUMNS))
            row[title] = value
    return list(rows.values())


def _lines(offer: Mapping[str, Any] | None) -> dict[str, str]:
    if offer is None:
        return {}
    lines = dict[str, str]()
    for machine in offer["machines"]:
        name = f"nodes of {machine['cpus']} CPUs, {machine['gpus']} GPUs, {machine['mem_mb']} MB"
        lines[name] = str(machine["nodes"])
    for name, price in offer["prices"].items():
        lines[PRICES.get(name, name)] = price
    for key, value in offer["labels"].items():
        lines[f"label {key}"] = value
    return lines


@app.command()
def register(
    context: typer.Context, reason: options.Reason = "", yes: options.Yes = False
) -> None:
    """Register the offer now, even if it is not measured, or if the grid has turned it
    down before.

    Example: supervisor provider register --reason "the grid will approve it now"
    """
    cli = cli_context(context)
    will = f"{_offered(cli)} will be registered on the contract at once"
    _ask(cli, "register", REGISTRATION_REQUESTED, will, yes, reason)


def _offered(cli: CliContext) -> str:
    """Return what is offered, in numbers. Raises CommandError before a worker has
    looked, and if another cluster registers for the wallet.
    """
    decision = Registrations(cli.ledger.facts).last_decision()
    if decision is None:
        raise CommandError(NOT_LOOKED)
    if registrar := decision.get("registrar"):
        raise CommandError(
            f"found that the cluster {registrar!r} registers for the wallet, which this cluster shares; expected to register"
            f" here: CLUSTER_NAME={registrar} supervisor provider register"
        )
    offer = decision["offered"]
    if offer is None:
        return "an offer of 0 nodes as yet, once SLURM shows some,"
    nodes = sum(machine["nodes"] for machine in offer["machines"])
    prices = ", ".join(
        f"{PRICES.get(name, name)}: {price}" for name, price in offer["prices"].items()
    )
    return f"an offer of {counted(nodes, 'node')} and {counted(len(offer['labels']), 'label')} ({prices})"


@app.command()
def measure(
    context: typer.Context, reason: options.Reason = "", yes: options.Yes = False
) -> None:
    """Have the benchmarks run, now or after the run that is under way, and have their
    results registered.

    Example: supervisor provider measure --reason "new switches"
    """
    cli = cli_context(context)
    if cli.settings.benchmark_disable:
        raise CommandError(
            "found BENCHMARK_DISABLE=true; expected false: nothing is measured"
        )
    jobs = counted(sum(cli.overview.snapshot().jobs.values()), "open job")
    _ask(
        cli,
        "measure",
        MEASUREMENT_REQUESTED,
        f"the benchmarks will use the cluster's nodes beside {jobs}",
        yes,
        reason,
    )


def _ask(
    cli: CliContext, verb: str, what: Fact[str], will: str, yes: bool, reason: str
) -> None:
    with cli.change(f"provider {verb}", "provider", will, yes=yes, reason=reason):
        Registrations(cli.ledger.facts).ask(what, reason or "the operator")
    typer.echo("asked; `supervisor provider show` shows the result")


COMMANDS = {"provider": app}
