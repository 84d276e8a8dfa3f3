"""Carries out effects of a ledger's jobs one batch at a time, as a worker does, and no others."""

from supervisor_tasks.jobs.batch import Batch
from supervisor_tasks.ledger import effects, outbox
from supervisor_tasks.ledger.effects import OpenEffect
from supervisor_tasks.ledger.store import Ledger
from supervisor_tasks.site import Site

TAKE = outbox.leasing("SELECT id FROM effects WHERE {due} AND id = ANY(:ids) AND lease IS NULL FOR UPDATE SKIP LOCKED")


def lease(ledger: Ledger, *effect_ids: int) -> list[OpenEffect]:
    """Take these effects, as far as they are due and free."""
    parameters = {
        "cluster": ledger.cluster,
        "holder": ledger.holder.number(),
        "lease_s": effects.LEASE_S,
        "ids": list(effect_ids),
    }
    with ledger.engine.begin() as connection:
        return effects.taken(connection.execute(TAKE, parameters))


def carry_out(site: Site, *effect_ids: int) -> None:
    """Carry out these effects, all of one kind, in one batch, if they are due."""
    carry_out_leased(site, lease(site.ledger, *effect_ids))


def carry_out_leased(site: Site, taken: list[OpenEffect]) -> None:
    """Carry out, in one batch, what is taken already."""
    left = [taken]
    if not taken:
        return
    batch = Batch(site, taken[0].kind, lambda *_: left.pop() if left else [])
    batch.run(lambda: True)
    batch.close()
