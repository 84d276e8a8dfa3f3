"""Carries out chosen effects of a ledger in one batch, as a worker does."""

from supervisor_tasks.context import WorkerContext
from supervisor_tasks.jobs.batch import Batch
from supervisor_tasks.ledger import outbox as effects
from supervisor_tasks.ledger import outbox_sql
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.outbox import OpenEffect

LEASE = outbox_sql.leasing(
    "SELECT id FROM effects WHERE {due} AND id = ANY(:ids) AND lease IS NULL FOR UPDATE SKIP LOCKED"
)


def lease(ledger: Ledger, *effect_ids: int) -> list[OpenEffect]:
    """Lease those of these effects that are due and not leased."""
    parameters = {
        "cluster": ledger.cluster,
        "holder": ledger.holder.number(),
        "lease_s": effects.LEASE_S,
        "ids": list(effect_ids),
    }
    with ledger.engine.begin() as connection:
        return effects.open_effects(connection.execute(LEASE, parameters))


def carry_out(site: WorkerContext, *effect_ids: int) -> None:
    """Carry out these effects, all of one kind, in one batch, if they are due."""
    carry_out_leased(site, lease(site.ledger, *effect_ids))


def carry_out_leased(site: WorkerContext, leased: list[OpenEffect]) -> None:
    """Carry out, in one batch, effects that are already leased."""
    batches = [leased]
    if not leased:
        return
    batch = Batch(site, leased[0].kind, lambda *_: batches.pop() if batches else [])
    batch.run(lambda: True)
    batch.close()
