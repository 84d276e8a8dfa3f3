"""The chain of a grid on a machine that is too busy for it."""

import pytest

from devgrid.chain.chain import Chain
from devgrid.chain.deployment import start_chain
from devgrid.chain.model import ChainError, ChainPrices, JobDefinition
from devgrid.processes import Processes, wait_until
from devgrid.state_folder import private_processes

BLOCK_TIME_S = 0.001  # more than any machine can do


@pytest.fixture(scope="module")
def chain(processes: Processes) -> Chain:
    return start_chain(processes, block_time_s=BLOCK_TIME_S)


def test_block_time__no_transaction_is_sent__blocks_come_by_themselves(
    chain: Chain,
) -> None:
    before = chain.block_number()
    wait_until(lambda: chain.block_number() > before + 3, "blocks", 60.0)


def test_block_time__shorter_than_the_machine_can_do__transaction_is_mined(
    chain: Chain,
) -> None:
    """anvil's own clock would have it wait for all the blocks that are late."""
    customer = chain.new_account()
    before = chain.block_number()
    wait_until(lambda: chain.block_number() > before + 1000, "many blocks", 240.0)
    receipt = chain.send(
        customer, "Credit", "approve", chain.addresses.metascheduler, 1
    )
    assert receipt["status"] == "0x1"


def test_jobs__many_at_once__as_one_by_one(chain: Chain) -> None:
    customer = chain.new_account()
    definition = JobDefinition(batch_location_hash="a" * 64)
    chain.admin.mint_credits(customer.address, 10**20)
    job_ids = chain.customers.request_jobs(
        customer, definition, 3, ChainPrices().of(definition)
    )
    assert chain.jobs(job_ids) == [chain.job(job_id) for job_id in job_ids]
    with pytest.raises(ChainError, match="InvalidJob"):
        chain.jobs([*job_ids, f"0x{7:064x}"])


def test_lose_from__a_block_that_is_empty__what_came_after_it_is_lost() -> None:
    """anvil puts the same block in the place of an empty one, of the same second and
    with the fee at its lowest.
    """
    with private_processes() as running:
        chain = start_chain(running)
        customer = chain.new_account()
        chain.mine(300)
        empty = chain.block_number() - 3
        for _ in range(2):  # the blocks of the first time are all of one second
            receipt = chain.send(
                customer, "Credit", "approve", chain.addresses.metascheduler, 1
            )
            chain.reorganise_from(empty)
            assert (
                chain.rpc.call("eth_getTransactionReceipt", receipt["transactionHash"])
                is None
            )
