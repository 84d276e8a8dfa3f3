"""Whether the SLURM that is found is the one that the ledger's jobs are in, and whether jobs are given to it."""

import click

from supervisor_tasks.cli.desk import WITHOUT_QUESTION, Desk, ask
from supervisor_tasks.ledger import word
from supervisor_tasks.ledger.facts import SLURM_IS, SLURM_SEEN
from supervisor_tasks.ledger.operator import Switch


@click.group()
def slurm() -> None:
    """Hold submissions, and accept a SLURM that is another one, or that has lost its memory."""


@slurm.command()
@click.option("--reason", default="the operator")
@click.pass_obj
def hold(desk: Desk, reason: str) -> None:
    """Give SLURM no more jobs, and claim none. What SLURM has goes on."""
    desk.ledger.switches.set(Switch.SUBMISSIONS_HELD, reason)
    click.echo("no more jobs are given to SLURM until `supervisor slurm accept`")


@slurm.command()
@WITHOUT_QUESTION
@click.pass_obj
def accept(desk: Desk, yes: bool) -> None:
    """Take SLURM as it is: what it does not know any more is lost, and jobs are given to it again."""
    known, seen = desk.ledger.facts.get(SLURM_IS), desk.ledger.facts.get(SLURM_SEEN)
    held = desk.ledger.switches.is_set(Switch.SUBMISSIONS_HELD)
    if seen is None and not held:
        raise click.ClickException("found no other SLURM, and submissions are not held; there is nothing to accept")
    if seen is not None:
        ask(yes, f"The cluster was {known or 'unknown'}, and is now {seen}. Is that right?")
    else:
        ask(yes, "Jobs that SLURM has forgotten, and that never ran, are submitted again. Is its memory lost for good?")
    word.accept_slurm(desk.ledger)
    click.echo("accepted; what ran and is forgotten waits for `supervisor confirm-lost`: see `supervisor sweeps`")


COMMANDS = (slurm,)
