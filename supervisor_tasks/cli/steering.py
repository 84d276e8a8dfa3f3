"""What steers the fleet: claiming, a sweep now, what another ledger left, what was read of the chain."""

import time
from dataclasses import asdict

import click

from supervisor_tasks.cli.desk import JSON, WITHOUT_QUESTION, Desk, ask
from supervisor_tasks.ledger.facts import PROVIDER, REWIND
from supervisor_tasks.ledger.operator import Switch
from supervisor_tasks.ledger.tellers import forget_reporter

POLL_S = 0.2


@click.group()
def drain() -> None:
    """Stop and start the claiming of jobs. What is under way goes on."""


@drain.command("on")
@click.option("--reason", default="")
@click.pass_obj
def drain_on(desk: Desk, reason: str) -> None:
    """Claim no more jobs."""
    desk.ledger.switches.set(Switch.DRAINED, reason)
    click.echo("no more jobs are claimed; what is under way goes on")


@drain.command("off")
@click.pass_obj
def drain_off(desk: Desk) -> None:
    """Claim jobs again."""
    desk.ledger.switches.unset(Switch.DRAINED)
    click.echo("jobs are claimed again")


@click.command()
@click.option("--wait-s", type=click.FloatRange(0), default=120.0, show_default=True, help="For the report.")
@JSON
@click.pass_obj
def sweep(desk: Desk, wait_s: float, as_json: bool) -> None:
    """Compare ledger, contract and SLURM now, and show what was found and done."""
    before = desk.sweeps.last()
    desk.sweeps.ask("the operator")
    deadline = time.monotonic() + wait_s
    while (found := desk.sweeps.last()) == before:
        if time.monotonic() > deadline:
            raise click.ClickException(
                f"found no report within {wait_s:g} s; expected one: see `supervisor health`, then `supervisor sweeps`"
            )
        time.sleep(POLL_S)  # the report is a row, which wakes nobody
    desk.shown.rows("sweep", [asdict(found[0])], as_json)


@click.command("forget-reporter")
@WITHOUT_QUESTION
@click.pass_obj
def forget_the_reporter(desk: Desk, yes: bool) -> None:
    """Wait no more for a reporter that the site has given up: ends are told without a spool, and what is lost is lost."""
    ask(yes, "No reporter delivers ends any more, and none is coming back with a spool. Is that right?")
    forget_reporter(desk.ledger.ticks)
    click.echo("nobody waits for a reporter until one is heard again")


@click.command("take-over")
@click.argument("mark")
@click.option("--yes-it-is-dead", is_flag=True, help="Although something speaks for it that its fleet lives.")
@WITHOUT_QUESTION
@click.pass_obj
def take_over(desk: Desk, mark: str, yes_it_is_dead: bool, yes: bool) -> None:
    """Make ours what a ledger that is lost has claimed; the alarm another_ledgers_jobs tells its MARK. Refused while anything
    is seen of its fleet: two fleets would run each job twice.
    """
    others = desk.ledger.others
    known = {found.hex(): number for found, number in others.count().items()}
    chosen = mark.lower().removeprefix("0x")
    if chosen not in known:
        shown = ", ".join(f"{found} ({number} jobs)" for found, number in sorted(known.items())) or "none"
        raise click.ClickException(f"found no jobs claimed under the mark {mark!r}; known marks: {shown}")
    _require_dead(desk, bytes.fromhex(chosen), yes_it_is_dead)
    ask(
        yes,
        f"{known[chosen]} jobs of another ledger become this one's. Is that ledger lost, and its fleet stopped for good? Two"
        " fleets would run each job twice",
    )
    others.take_over(bytes.fromhex(chosen))
    desk.sweeps.ask(f"the mark {chosen} was taken over")
    click.echo(f"{known[chosen]} jobs are taken in by the next sweep; `supervisor sweeps` tells what came of it")


def _require_dead(desk: Desk, mark: bytes, sure: bool) -> None:
    from supervisor_tasks.chain.endpoints import Endpoints  # web3, for which every other command would wait
    from supervisor_tasks.journey.other_fleet import signs_of_life

    provider = desk.ledger.facts.get(PROVIDER)
    rpc = Endpoints(desk.settings.rpc_urls, desk.settings.chain_id)
    ledger = desk.ledger
    signs = signs_of_life(ledger.engine, ledger.cluster, rpc, provider or "", mark)
    for sign in signs:
        click.echo(f"{mark.hex()}: {sign}", err=True)
    if signs and not sure:
        raise click.ClickException(
            "expected no sign of life of the other ledger's fleet: stop it for good and look again, or --yes-it-is-dead"
        )


@click.group()
def chain() -> None:
    """What was read of the chain."""


@chain.command()
@click.option(
    "--to-block", type=click.IntRange(0), help="Instead of the last block that ledger and node have in common."
)
@WITHOUT_QUESTION
@click.pass_obj
def rewind(desk: Desk, to_block: int | None, yes: bool) -> None:
    """After a reorganisation that was too deep: have a worker of the chain queue take back what was read of lost blocks."""
    target = "the last block in common" if to_block is None else f"block {to_block}"
    refusal = None if to_block is None else desk.blocks.why_not_back_to(to_block)
    if refusal is not None:
        raise click.ClickException(refusal)
    ask(yes, f"Take back what was read of the chain above {target}?")
    desk.ledger.facts.set(REWIND, to_block)
    click.echo("asked; `supervisor alarms` and the log of the chain queue's worker tell what came of it")


COMMANDS = (drain, sweep, forget_the_reporter, take_over, chain)
