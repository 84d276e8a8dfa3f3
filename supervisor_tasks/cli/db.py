"""The ledger's tables."""

import click

from supervisor_tasks.cli.desk import Desk
from supervisor_tasks.embedded import database_url
from supervisor_tasks.ledger.migrations import upgrade as upgrade_tables
from supervisor_tasks.settings import or_exit


@click.group()
def db() -> None:
    """Bring the ledger's tables up to date."""


@db.command()
@click.pass_obj
def upgrade(desk: Desk) -> None:
    """Bring the tables up to what this version works with. The same again changes nothing.

    Several of these may run at once: they take turns. A table that a long transaction holds makes the command fail after
    5 s, and the supervisor does not wait behind it.
    """
    with or_exit():
        url = database_url(desk.settings)
    before, after = upgrade_tables(url)
    click.echo(f"the ledger's tables are at {after}" + ("" if before == after else f", and were at {before or 'none'}"))


COMMANDS = (db,)
