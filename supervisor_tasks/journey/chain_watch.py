"""What the operator is called for about the chain and the wallet."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from supervisor_tasks.chain.contract import Offer, WrongChainError
from supervisor_tasks.chain.endpoints import Endpoints, Health
from supervisor_tasks.chain.rpc import RpcUnavailableError
from supervisor_tasks.ledger.operator import AlarmName
from supervisor_tasks.site import Site

ASKED_S = 15.0
FOREIGN_QUIET_S = 3600.0  # a foreign writer that was not seen for so long is gone


@contextmanager
def chain_watched(site: Site) -> Iterator[None]:
    """Call the operator while the chain does not answer, or an endpoint serves another chain, and not any more after that."""
    alarms = site.ledger.alarms
    try:
        yield
    except (RpcUnavailableError, WrongChainError) as error:
        if isinstance(error, WrongChainError):
            alarms.on(AlarmName.WRONG_CHAIN, error=str(error))
        alarms.on(AlarmName.CHAIN_NOT_ANSWERING, error=str(error)[:500])
        _watch_endpoints(site)
        raise
    alarms.off(AlarmName.CHAIN_NOT_ANSWERING)
    _watch_endpoints(site)


def _watch_endpoints(site: Site) -> None:
    rpc, alarms = site.chain.contract.rpc, site.ledger.alarms
    if not isinstance(rpc, Endpoints):
        return
    health = rpc.health()
    wrong = [name for name, is_ in health.items() if is_ is Health.WRONG_CHAIN]
    if wrong:
        alarms.on(AlarmName.WRONG_CHAIN, endpoints=wrong, expected=site.chain.contract.chain_id)
    elif Health.ALIVE in health.values():
        alarms.off(AlarmName.WRONG_CHAIN)


def wallet_watched(site: Site, offer: Offer) -> set[AlarmName]:
    """Raise and clear what concerns the wallet and the contract; returns the names of all alarms that are on."""
    alarms, wallet = site.ledger.alarms, site.chain.wallet
    on = {alarm.name: alarm.details for alarm in alarms.all()}
    needed_wei = max(site.chain.wallet_min_wei, wallet.open_cost_wei(), _asked_wei(on.get(AlarmName.WALLET_EMPTY, {})))
    if offer.balance_wei < needed_wei:
        about = {"balance_wei": offer.balance_wei, "needed_wei": needed_wei}
        alarms.on(AlarmName.WALLET_EMPTY, **{"address": wallet.address, **on.get(AlarmName.WALLET_EMPTY, {}), **about})
    else:
        alarms.off(AlarmName.WALLET_EMPTY)
    if offer.open:
        alarms.off(AlarmName.CONTRACT_RETIRED)
    else:
        alarms.on(AlarmName.CONTRACT_RETIRED, contract=site.chain.contract.address)
    if AlarmName.FOREIGN_WRITER in on and _age_s(on[AlarmName.FOREIGN_WRITER]) > FOREIGN_QUIET_S:
        alarms.off(AlarmName.FOREIGN_WRITER)
    if not site.ledger.has_open_transactions():
        alarms.off(AlarmName.TRANSACTION_STUCK)
    return {alarm.name for alarm in alarms.all()}


def _asked_wei(details: dict[str, Any]) -> int:
    """What a write that could not be paid for needed, lately: it asks again every few seconds."""
    return int(details["needed_wei"]) if "seen_s" in details and _age_s(details) < ASKED_S else 0


def _age_s(details: dict[str, Any]) -> float:
    return time.time() - float(details.get("seen_s", 0))
