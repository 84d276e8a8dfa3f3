"""What the operator's commands work with: the settings, the ledger, where answers go."""

from functools import cached_property, partial

import click
from sqlalchemy import Engine

from supervisor_tasks.health import complaints, periodic_work
from supervisor_tasks.job import Job, JobId
from supervisor_tasks.ledger.blocks import Blocks
from supervisor_tasks.ledger.database import open_engine
from supervisor_tasks.ledger.due import not_woken
from supervisor_tasks.ledger.overview import Overview, Snapshot
from supervisor_tasks.ledger.store import Ledger
from supervisor_tasks.ledger.sweeps import Sweeps
from supervisor_tasks.metrics import oldest_due_s
from supervisor_tasks.settings import Settings, load_or_exit
from supervisor_tasks.show import Shown

JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable, one document.")
WITHOUT_QUESTION = click.option("--yes", is_flag=True, help="Do not ask.")


class Desk:
    """What a command works with."""

    @cached_property
    def settings(self) -> Settings:
        """No key is among them."""
        return load_or_exit()

    @cached_property
    def _engine(self) -> Engine:
        engine = open_engine(self.settings, connections=3)
        click.get_current_context().find_root().call_on_close(engine.dispose)
        return engine

    @cached_property
    def ledger(self) -> Ledger:
        """What the ledger is told. A command sends no messages: what it opens counts as not woken, and the clock has it
        woken within a second.
        """
        return Ledger(self._engine, self.settings.cluster_name, wake=partial(not_woken, self._engine))

    @cached_property
    def overview(self) -> Overview:
        """What the ledger is asked."""
        return Overview(self._engine, self.settings.cluster_name)

    @cached_property
    def sweeps(self) -> Sweeps:
        """The sweeps, and who asks for one."""
        return Sweeps(self._engine, self.settings.cluster_name)

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks of the chain that are kept."""
        return Blocks(self._engine, self.settings.cluster_name, self.settings.chain_confirmations)

    @cached_property
    def shown(self) -> Shown:
        """Where answers go."""
        return Shown(self.settings.secret_values())

    def job(self, beginning: str) -> Job:
        """The one job whose id begins so."""
        found = self.overview.matching(_prefix(beginning))
        if len(found) != 1:
            number = "no job" if not found else "several jobs"
            raise click.ClickException(
                f"found {number} of cluster {self.settings.cluster_name!r} whose id begins with {beginning!r}; expected"
                " one: see `supervisor jobs`, or give more of the id"
            )
        return self.ledger.jobs(found)[JobId(found[0])]

    def complaints(self, snapshot: Snapshot) -> list[str]:
        """What is wrong with the fleet."""
        periodic = periodic_work(self.settings.chain_poll_s, accounts=self.settings.ldap_url is not None)
        return complaints(periodic, snapshot.ticks_s, oldest_due_s(snapshot.effects))


def ask(yes: bool, question: str) -> None:
    """Go on only with the operator's yes."""
    if not yes:
        click.confirm(question, abort=True)


def _prefix(beginning: str) -> str:
    """A job's id as it begins; nothing that a pattern could mean something else by."""
    text = beginning.lower()
    text = text if text.startswith("0x") else f"0x{text}"
    if len(text) > 66 or not set(text[2:]) <= set("0123456789abcdef"):
        raise click.ClickException(f"found {beginning!r}; expected a job's id, 0x and up to 64 hex digits")
    return text
