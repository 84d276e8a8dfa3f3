"""Scan: the chain's logs from the cursor on, for whatever no receipt told us, and whether what was read is still there."""

import structlog
from sqlalchemy import Connection

from supervisor_tasks.chain import blocks
from supervisor_tasks.chain.blocks import BetweenForksError, Stretch
from supervisor_tasks.events import ChainSaw, Claimed
from supervisor_tasks.journey.drain import drain
from supervisor_tasks.journey.heard import heard
from supervisor_tasks.journey.ours import without_others_claims
from supervisor_tasks.journey.reorganised import end_doubts, look_for_fork, look_for_lost_receipts
from supervisor_tasks.ledger.operator import AlarmName
from supervisor_tasks.ledger.store import Change
from supervisor_tasks.site import Site

log = structlog.get_logger()

STREAM = "contract"
STANDS_STILL = "the scan stands still at"  # the fact; no block: it does not
BEHIND_S = 180.0  # a node that is behind for so long will not catch up by itself
BLOCKS = 1000  # in one question; nodes limit the range


def scan(site: Site) -> None:
    """Read the logs of all blocks since the last time. The first scan of a new ledger begins at the present block:
    what was claimed before it is another ledger's.
    """
    drain(site.ledger, "scan", lambda: _scan(site))


def _scan(site: Site) -> bool:
    """One step; returns whether there is more to do. A node that is behind tells nothing."""
    chain, ledger = site.chain, site.ledger
    head, known, cursor = blocks.head(chain.contract.rpc), chain.blocks.known(), ledger.cursors.of(STREAM)
    if blocks.is_behind(head, known):
        _stand_still(site, head, max(known))
        return False
    _go_on(site)
    if known and not look_for_fork(site, head, known):
        return max(known) > max(chain.blocks.known(), default=0)
    last = head if cursor is None else min(head, cursor[0] + BLOCKS)
    if cursor is None or cursor[0] < head:
        _read(site, known, head if cursor is None else cursor[0] + 1, last, head)
    if not look_for_lost_receipts(site, head, last):
        return False
    ledger.alarms.off(AlarmName.REORGANISED_TOO_DEEP)
    if last == head:
        end_doubts(site, head)
    return last < head


def _stand_still(site: Site, head: int, read_up_to: int) -> None:
    """Nothing is read while the node has less than was read already. When that lasts, somebody has to look at the node."""
    ledger = site.ledger
    log.info("node_behind", head=head, read_up_to=read_up_to)
    ledger.sweeps.learn(STANDS_STILL, str(read_up_to))
    known = ledger.sweeps.fact(STANDS_STILL)
    if known is not None and known[1] > BEHIND_S:
        about = {"head": head, "read_up_to": read_up_to, "for_s": round(known[1])}
        ledger.alarms.on(AlarmName.NODE_BEHIND, **about, advice="the chain's events are not read: look at the node")


def _go_on(site: Site) -> None:
    site.ledger.sweeps.learn(STANDS_STILL, "")
    site.ledger.alarms.off(AlarmName.NODE_BEHIND)


def _read(site: Site, known: dict[int, str], first: int, last: int, head: int) -> None:
    """Commit what the logs of these blocks say, how far they were read, and the hashes of those that may yet be lost."""
    contract, ledger, depth = site.chain.contract, site.ledger, site.chain.confirmations
    first_kept = min(last, max(first if known else 0, head - depth))
    stretch = blocks.read_stretch(contract.rpc, first_kept, last, contract.logs_call(first, last))
    before = known.get(first_kept - 1)
    if before is not None and stretch.blocks[0].parent != before:
        raise BetweenForksError(f"block {first_kept} does not follow the one that was read before it")

    def read_so_far(connection: Connection) -> None:
        site.chain.blocks.remember(connection, stretch.hashes)
        ledger.cursors.set(connection, STREAM, last, stretch.hashes[last])

    ledger.record(*_changes(site, stretch), also=read_so_far)


def _changes(site: Site, stretch: Stretch) -> list[Change]:
    contract = site.chain.contract
    happened = without_others_claims(site.ledger, contract, heard(site.ledger, contract, stretch.logs))
    ours = set(site.ledger.jobs({entry.job_id for entry in happened}))
    ours |= {entry.job_id for entry in happened if isinstance(entry.event, Claimed)}  # and may have gone on since
    return [
        Change(entry.job_id, entry.event)
        for entry in happened
        if entry.job_id in ours or not isinstance(entry.event, ChainSaw)
    ]
