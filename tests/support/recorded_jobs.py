"""A job in a ledger: its claim, its way into SLURM's queue, and what the ledger has
written and dispatched about it.
"""

from collections.abc import Sequence

from sqlalchemy import Engine, text

from supervisor_tasks.jobs.events import (
    Claimed,
    ScriptFetched,
    SubmitStarted,
    Submitted,
)
from supervisor_tasks.jobs.model import (
    Address,
    Definition,
    EffectKind,
    JobId,
    SlurmId,
)
from supervisor_tasks.ledger.ledger import JobChange, Ledger
from supervisor_tasks.ledger.outbox import OpenEffect

JOB = JobId("0x" + "5" * 64)
CLAIM = Claimed(
    job_id=JOB,
    customer=Address("0x" + "2" * 40),
    provider=Address("0x" + "3" * 40),
    claim_key="claim:0",
    definition=Definition(
        gpus=1,
        mem_per_cpu_mb=100,
        cpus_per_task=2,
        ntasks=3,
        batch_location_hash="hash",
    ),
    time_limit_min=10,
    at=(7, 2),
)


class Dispatched:
    """Records which effects the ledger dispatched."""

    def __init__(self) -> None:
        self.effects: list[OpenEffect] = []

    def __call__(self, effects: Sequence[OpenEffect]) -> None:
        self.effects += effects

    def kinds(self) -> list[EffectKind]:
        """The kinds of those that were dispatched since the last call."""
        kinds = [effect.kind for effect in self.effects]
        self.effects.clear()
        return kinds


def open_kinds(engine: Engine) -> set[str]:
    """The kinds of the effects that are open."""
    with engine.connect() as connection:
        return set(
            connection.scalars(text("SELECT kind FROM effects WHERE done_at IS NULL"))
        )


def journal(engine: Engine) -> list[str]:
    """The names of all events, the oldest first."""
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT name FROM events ORDER BY id")))


def bring_to_queued(ledger: Ledger) -> None:
    """Record that SLURM has taken JOB."""
    events = (
        CLAIM,
        ScriptFetched("echo", "logger:1"),
        SubmitStarted(10),
        Submitted(SlurmId(7)),
    )
    ledger.record(*(JobChange(JOB, event) for event in events))
