"""What transactions cost and earn, as the ledger counts it, against the chain's own
balances; and how long a job waited.
"""

import pytest
from sqlalchemy import Engine

from devgrid.chain.chain import Chain
from devgrid.chain.model import Account
from supervisor_tasks.chain.contract import report_call
from supervisor_tasks.indexer.scan import scan
from supervisor_tasks.instruments import REGISTRY
from supervisor_tasks.jobs.model import ChainStatus, JobId, StatusUpdate
from supervisor_tasks.wallet.transaction_writer import Write
from tests.support.wallet_harness import (
    GAS,
    ChainHarness,
    claims,
    registered,
    scheduled_jobs,
    sent,
)

MINUTES = 2


@pytest.fixture(scope="module")
def provider(chain: Chain) -> Account:
    return registered(chain)


def credits_of(chain: Chain, provider: Account) -> int:
    held: int = chain.call("Credit", "balanceOf", provider.address)[0]
    return held


def coins_of(chain: Chain, provider: Account) -> int:
    return int(chain.rpc.call("eth_getBalance", provider.address, "latest"), 16)


def reported(job_id: JobId, report: StatusUpdate) -> Write:
    return Write(
        f"{job_id}:{report.status}",
        "report",
        report_call(job_id, report),
        job_id,
        gas=GAS,
    )


def waits() -> float:
    return REGISTRY.get_sample_value("supervisor_claim_wait_seconds_count") or 0.0


def test_totals__of_a_job_that_was_paid__agree_with_the_chain_to_the_wei(
    chain: Chain, provider: Account, database: Engine
) -> None:
    harness = ChainHarness.of(chain, provider, database)
    scan(harness.site)
    credits_before, coins_before, waits_before = (
        credits_of(chain, provider),
        coins_of(chain, provider),
        waits(),
    )
    (job_id,) = scheduled_jobs(chain, provider, 1)
    sent(harness, *claims(1))
    scan(harness.site)
    sent(harness, reported(job_id, StatusUpdate(ChainStatus.RUNNING)))
    sent(harness, reported(job_id, StatusUpdate(ChainStatus.FINISHED, minutes=MINUTES)))
    totals = harness.site.ledger.counters.read()
    earned = credits_of(chain, provider) - credits_before
    assert earned > 0
    assert totals["credits", ""] == earned
    assert totals["fees_wei", ""] == coins_before - coins_of(chain, provider)
    assert totals["transactions", "mined"] == 3
    assert waits() == waits_before + 1
    assert (
        REGISTRY.get_sample_value(
            "supervisor_chain_head_lag_blocks", {"chain_id": str(chain.chain_id)}
        )
        == 0
    )
