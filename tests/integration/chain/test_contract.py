"""What the contract on a real chain says of its queues."""

import pytest

from devgrid.chain.chain import Chain
from devgrid.chain.model import Account
from supervisor_tasks.chain.contract import Contract, WrongChainError
from supervisor_tasks.jobs.model import Address
from tests.support.wallet_harness import scheduled_jobs


def test_demand__wrong_chain__says_which(chain: Chain, provider: Account) -> None:
    contract = Contract(
        chain.rpc, 1, chain.addresses.metascheduler, Address(provider.address)
    )
    with pytest.raises(
        WrongChainError, match="serves chain 179188, the settings want 1"
    ):
        contract.demand()


def test_demand__sizes_of_the_queues__in_one_request(
    chain: Chain, provider: Account
) -> None:
    scheduled_jobs(chain, provider, 3)
    contract = Contract(
        chain.rpc,
        chain.chain_id,
        chain.addresses.metascheduler,
        Address(provider.address),
    )
    demand = contract.demand()
    assert (demand.claimable, demand.cancelling, demand.topped_up, demand.open) == (
        3,
        0,
        0,
        True,
    )
    assert demand.balance_wei > 10**18
