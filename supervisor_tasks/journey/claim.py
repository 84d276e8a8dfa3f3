"""Claim: what the contract has for this provider, n at a time."""

import secrets

import structlog

from supervisor_tasks.chain.contract import CLAIM, CLAIM_CANCELLING, CLAIM_TOP_UP, Demand, Permission
from supervisor_tasks.chain.estimates import NoEstimateError
from supervisor_tasks.chain.wallet import Write
from supervisor_tasks.job import State
from supervisor_tasks.journey import vain_claims
from supervisor_tasks.journey.chain_watch import chain_watched, wallet_watched
from supervisor_tasks.journey.check_slurm import slurm_works
from supervisor_tasks.journey.claim_room import Room, Waits
from supervisor_tasks.journey.drain import drain, ticking
from supervisor_tasks.journey.puzzling import is_held
from supervisor_tasks.ledger.operator import AlarmName, Switch
from supervisor_tasks.ledger.provider import Registrations
from supervisor_tasks.ledger.store import Ledger
from supervisor_tasks.monitoring.slurm_tries import ANSWERED
from supervisor_tasks.site import Site

log = structlog.get_logger()

WAITING = (State.CLAIMED, State.READY, State.SUBMITTING, State.QUEUED)
# While one of these is on, no new job is claimed: it could not be reported or paid for, or may not exist.
STANDING = {
    AlarmName.CONTRACT_RETIRED,
    AlarmName.WALLET_EMPTY,
    AlarmName.TRANSACTION_STUCK,
    AlarmName.REORGANISED_TOO_DEEP,
}
CALLS = {"claim": CLAIM, "claim-cancelling": CLAIM_CANCELLING, "claim-top-up": CLAIM_TOP_UP}
MORE_GAS = 20_000  # than the next claim needs: the ones behind it may carry longer definitions


def look(site: Site) -> bool:
    """Whether the contract has anything for us. Writes down what it lets us do, and calls the operator for what is wrong with
    the chain or the wallet. Raises RpcUnavailableError or LedgerUnavailableError (a retry helps), or WrongChainError.
    """
    with ticking(site.ledger, "claim"), chain_watched(site):
        demand = site.chain.contract.demand()
        wallet_watched(site, demand)
        _hear_of_registration(site, demand.permission)
        for purpose, number in _numbers(demand).items():
            if not number:
                vain_claims.would_not_revert(site.ledger, purpose)  # what is not estimated is not refused
        if not demand.claimable:
            site.ledger.alarms.off(AlarmName.CLAIMS_FULL)  # no job waits for a place
    return any(_numbers(demand).values())


def _numbers(demand: Demand) -> dict[str, int]:
    return {
        "claim": demand.claimable,
        "claim-cancelling": demand.cancelling,
        "claim-top-up": demand.topped_up,
    }


def claim(site: Site) -> None:
    """Look at the queues and write as many claims as there are jobs, cancellations and top-ups for us. What they give
    is read from their receipts.
    """
    drain(site.ledger, "claim", lambda: _claim(site))


def _claim(site: Site) -> bool:
    chain = site.chain
    with chain_watched(site):
        demand = chain.contract.demand()
        alarms = wallet_watched(site, demand)
        _hear_of_registration(site, demand.permission)
        _send(site, demand, alarms)
    return False


def _hear_of_registration(site: Site, permission: Permission) -> None:
    """Whoever registers looks at once when the grid has approved, removed, banned."""
    facts = Registrations(site.ledger.facts)
    if facts.learn_permission(permission.valid, permission.waiting, permission.banned) and site.offer_side is not None:
        site.offer_side.wake()


def _send(site: Site, demand: Demand, alarms: set[AlarmName]) -> None:
    chain = site.chain
    wanted = _numbers(demand) | {"claim": min(demand.claimable, _room(site, demand, alarms))}
    for purpose in (purpose for purpose, number in wanted.items() if not number):
        vain_claims.would_not_revert(site.ledger, purpose)  # what is not estimated is not refused
    if not any(wanted.values()):
        return
    under_way = [transaction.purpose for transaction in chain.wallet.open_transactions()]
    writes, failed = list[Write](), None
    for purpose, number in wanted.items():
        try:
            most = vain_claims.at_once(site.ledger, purpose, min(number, chain.claim_batch))
            writes += _writes(site, purpose, most - under_way.count(purpose))
        except NoEstimateError as error:
            failed = error  # of these alone
    if writes:
        chain.wallet.send(writes)
        log.info("claims_sent", **{purpose: number for purpose, number in wanted.items() if number})
        chain.wake_tracker()
    if failed is not None:
        raise failed


def _room(site: Site, demand: Demand, alarms: set[AlarmName]) -> int:
    """How many jobs may be claimed now. What is under way goes on, whatever the answer."""
    ledger = site.ledger
    if not demand.claimable:
        ledger.alarms.off(AlarmName.CLAIMS_FULL)  # no job waits for a place
        return 0
    standing = sorted(alarms & STANDING)
    because = [*standing, *(switch for switch in Switch if ledger.switches.is_set(switch))]
    if because:
        log.info("not_claiming", claimable=demand.claimable, because=because)
        return 0
    if not demand.permission.valid:
        log.info(
            "not_claiming", claimable=demand.claimable, because="the grid has not approved this provider, or banned it"
        )
        return 0
    if not slurm_works(ledger):
        log.warning("slurm_not_answering", claimable=demand.claimable, last_answer_s=ledger.ticks.age_s(ANSWERED))
        return 0
    return _places(site, demand)


def _places(site: Site, demand: Demand) -> int:
    """How many jobs there is room for. Who takes it is asked only when it may be full."""
    chain, ledger = site.chain, site.ledger
    number = ledger.count_in_states(WAITING)
    if number < chain.claim_max_waiting:
        ledger.alarms.off(AlarmName.CLAIMS_FULL)
        return chain.claim_max_waiting - number
    waiting, room = _waiting(ledger), Room(chain.claim_max_waiting, chain.claim_customer_share)
    left = room.left(waiting)
    if left:
        ledger.alarms.off(AlarmName.CLAIMS_FULL)
        return left
    full = f"{number} jobs wait, {chain.claim_max_waiting} at most may (CLAIM_MAX_WAITING)"
    log.info("not_claiming", claimable=demand.claimable, because=full)
    advice = "end jobs that are held (scancel), or raise CLAIM_MAX_WAITING"
    ledger.alarms.on(AlarmName.CLAIMS_FULL, waiting=number, customers=room.told(waiting), advice=advice)
    return 0


def _waiting(ledger: Ledger) -> dict[str, Waits]:
    found = dict[str, Waits]()
    for customer, seen, number in ledger.journal.waiting(WAITING):
        waits = found.get(customer, Waits())
        held = seen is not None and is_held(seen)
        found[customer] = Waits(waits.turn + number * (not held), waits.held + number * held)
    return found


def _writes(site: Site, purpose: str, number: int) -> list[Write]:
    if number <= 0:
        return []
    data = CALLS[purpose].encode()
    gas = site.chain.wallet.estimate([Write("", purpose, data)])[0]
    if isinstance(gas, NoEstimateError):
        raise gas
    if not isinstance(gas, int):
        if vain_claims.would_revert(site.ledger, purpose, str(gas)):
            log.warning("claim_would_revert", purpose=purpose, error=str(gas))
        return []
    vain_claims.would_not_revert(site.ledger, purpose)
    # One claim is like another: a random intent keeps them apart.
    return [Write(f"{purpose}:{secrets.token_hex(8)}", purpose, data, gas=gas + MORE_GAS) for _ in range(number)]
