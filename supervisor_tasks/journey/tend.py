"""Tend: transactions that were sent and are not mined get what they need."""

from collections.abc import Sequence

import structlog

from supervisor_tasks.chain.book import Sent
from supervisor_tasks.chain.refusals import Refusal
from supervisor_tasks.chain.remedies import ODD, SEND_AGAIN_S, Cure, Pending, Remedy, Rules, cures, stale
from supervisor_tasks.chain.signed import read
from supervisor_tasks.chain.wallet import AccountState
from supervisor_tasks.job import Kind
from supervisor_tasks.journey.chain_watch import calm
from supervisor_tasks.ledger.conditions import Duration
from supervisor_tasks.ledger.operator import AlarmName
from supervisor_tasks.site import Site

log = structlog.get_logger()

MOST_CERTAIN = 20  # nonces of others that are made certain of in one pass; each costs a request
SHOWN = 5
ODDLY_REFUSED = "first_transaction_oddly_refused"  # the duration: all others wait behind it

Plan = dict[Remedy, list[Sent]]


def tend(site: Site, waiting: Sequence[Sent], state: AccountState) -> None:
    """Give each transaction without a receipt what it needs. Those of a former key are sent again and never signed anew."""
    prescribed = _cures(site, waiting, state)
    plan: Plan = {kind: [entry for entry in waiting if prescribed[entry.id].remedy is kind] for kind in Remedy}
    wallet = site.chain.wallet
    wallet.replace([(entry, prescribed[entry.id].fees) for entry in plan[Remedy.REPLACE]], state.head)
    for entry in plan[Remedy.REPLACE]:
        prices = {"was_wei_per_gas": entry.fees.max_fee_wei, "is_wei_per_gas": prescribed[entry.id].fees.max_fee_wei}
        log.info("transaction_replaced", purpose=entry.purpose, nonce=entry.nonce, **prices)
    wallet.give_up(plan[Remedy.GIVE_UP], state.market, state.head)
    for entry in plan[Remedy.GIVE_UP]:
        about = {"purpose": entry.purpose, "job_id": entry.job_id, "nonce": entry.nonce, "gas": entry.gas}
        log.warning("nonce_given_up", refusal=entry.refusal, **about)
    _alarm(site, plan[Remedy.CAPPED], state)
    if plan[Remedy.PAUSE]:
        mine = [entry for entry in waiting if entry.address == wallet.address]
        needed_wei = sum(entry.gas * prescribed[entry.id].fees.max_fee_wei for entry in mine)
        wallet.alarm_of_empty(state.balance_wei, needed_wei)
    _send_again(site, waiting, plan)
    _give_nonces_up(site, plan, state)
    _fill(site, waiting, state)


def _cures(site: Site, waiting: Sequence[Sent], state: AccountState) -> dict[int, Cure]:
    """What each needs, by its id."""
    wallet, rules = site.chain.wallet, Rules(site.chain.wallet.bounds, site.chain.stuck_after_s)
    others = sorted({entry.address for entry in waiting} - {wallet.address})
    mined = {wallet.address: state.mined_nonces, **dict(zip(others, wallet.mined_nonces(others), strict=True))}
    odd_id, odd_s = _oddly_refused(site, waiting, state)
    found = dict[int, Cure]()
    for address, mined_nonces in mined.items():
        entries = [entry for entry in waiting if entry.address == address]
        pending = [_pending(entry, wallet.address, state, odd_s if entry.id == odd_id else 0.0) for entry in entries]
        needed = cures(pending, mined_nonces, state.market, rules, state.balance_wei)
        found.update(zip((entry.id for entry in entries), needed, strict=True))
    return found


def _oddly_refused(site: Site, waiting: Sequence[Sent], state: AccountState) -> tuple[int | None, float]:
    """The transaction whose turn it is, if a node refuses it and nobody knows what to do about that; and for how long."""
    wallet = site.chain.wallet
    first = (entry for entry in waiting if entry.address == wallet.address and entry.nonce == state.mined_nonces)
    # Refused bytes are sent again each second: what lies further back was said before nobody answered, or nobody asked.
    just_now = (entry for entry in first if not entry.accepted and entry.sent_age_s < SEND_AGAIN_S)
    odd_id = next((entry.id for entry in just_now if entry.refusal in ODD), None)
    return odd_id, Duration(site.ledger.facts, ODDLY_REFUSED).update(odd_id is not None, str(odd_id))


def _pending(entry: Sent, address: str, state: AccountState, odd_s: float) -> Pending:
    return Pending(
        nonce=entry.nonce,
        gas=entry.gas,
        fees=entry.fees,
        mine=entry.address == address,
        accepted=entry.accepted,
        refusal=entry.refusal,
        sent_age_s=entry.sent_age_s,
        signed_age_s=entry.signed_age_s,
        blocks=state.head - entry.head,
        contested_age_s=entry.contested_age_s,
        nothing=entry.refusal in (Refusal.GAS, *ODD) and read(entry.raw).to == entry.address,
        odd_age_s=odd_s,
    )


def _send_again(site: Site, waiting: Sequence[Sent], plan: Plan) -> None:
    """The same bytes, the lowest nonce first. Where a node misses an earlier nonce, all that are earlier go with it."""
    wallet = site.chain.wallet
    chosen = {entry.id for entry in plan[Remedy.SEND]}
    chosen |= {e.id for e in plan[Remedy.CAPPED] + plan[Remedy.PAUSE] if stale(e.accepted, e.sent_age_s)}
    gaps = [entry.nonce for entry in plan[Remedy.SEND] if entry.refusal is Refusal.NONCE_GAP]
    done = {
        entry.id for kind in (Remedy.REPLACE, Remedy.GIVE_UP, Remedy.CONTEST, Remedy.FOREIGN) for entry in plan[kind]
    }
    before = max(gaps, default=-1)
    wallet.send_again([e for e in waiting if e.id in chosen or (e.nonce < before and e.id not in done)])


def _give_nonces_up(site: Site, plan: Plan, state: AccountState) -> None:
    """Where somebody else's transaction has the nonce, the intent is free and is written again with another one."""
    wallet, ledger = site.chain.wallet, site.ledger
    mined = plan[Remedy.CONTEST] + plan[Remedy.FOREIGN]
    ids = {entry.id for entry in mined}
    free = [entry for entries in plan.values() for entry in entries if entry.id not in ids]
    wallet.book.contest([entry.id for entry in mined if entry.contested_age_s is None])
    wallet.book.uncontest([entry.id for entry in free if entry.contested_age_s is not None])
    lost = [entry for entry in plan[Remedy.FOREIGN][:MOST_CERTAIN] if wallet.certainly_not_mined(entry, state)]
    if not lost:
        return
    wallet.book.foreign([entry.id for entry in lost])
    shown = [f"{entry.nonce}: {entry.purpose}" for entry in lost[:SHOWN]]
    wallet.alarm_of_foreign(nonces=", ".join(shown), transactions=len(lost))
    log.warning("nonces_lost", nonces=shown, transactions=len(lost))
    ledger.effects.hurry([entry.job_id for entry in lost if entry.job_id], (Kind.REPORT, Kind.REFUSE))


def _fill(site: Site, waiting: Sequence[Sent], state: AccountState) -> None:
    """A nonce between the chain's and ours that nothing open has would hold up all behind it: what the ledger once signed for
    it is sent again, and where it never signed anything, a transaction that does nothing.
    """
    wallet = site.chain.wallet
    mine = {
        entry.nonce: entry for entry in waiting if entry.address == wallet.address and entry.nonce >= state.mined_nonces
    }
    holes = [nonce for nonce in range(state.mined_nonces, max(mine, default=0)) if nonce not in mine][:MOST_CERTAIN]
    if not holes or max(entry.signed_age_s for entry in mine.values()) < SEND_AGAIN_S:
        return
    known = wallet.book.at_nonces(wallet.address, holes)
    signed = {nonce: raw for nonce, (row_state, _, raw) in known.items() if row_state != "FOREIGN"}
    wallet.send_raw(list(signed.values()))
    for nonce in holes:
        if nonce not in signed:
            log.warning("nonce_filled", nonce=nonce)
            wallet.fill(nonce)


def _alarm(site: Site, capped: Sequence[Sent], state: AccountState) -> None:
    alarms, wallet = site.ledger.alarms, site.chain.wallet
    if capped:
        first = capped[0]
        alarms.on(
            AlarmName.TRANSACTION_STUCK,
            transactions=len(capped),
            nonce=first.nonce,
            purpose=first.purpose,
            address=first.address,
            pays_wei_per_gas=first.fees.max_fee_wei,
            market_wei_per_gas=state.market.least_wei,
            most_wei_per_gas=wallet.bounds.of(first.gas),
        )
    else:
        calm(site)
