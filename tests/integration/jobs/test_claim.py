"""Claims on a real chain: those that revert or get no estimate, and what pauses them."""

from collections import Counter
from dataclasses import replace

import pytest

from devgrid.chain.chain import Chain
from devgrid.chain.model import Account
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.abi_codec import function
from supervisor_tasks.chain.contract import CLAIM
from supervisor_tasks.chain.rpc.client import RpcUnavailableError
from supervisor_tasks.execution import claim_backoff
from supervisor_tasks.jobs.claim import claim
from supervisor_tasks.jobs.model import ChainStatus, JobId
from supervisor_tasks.ledger.switch_names import Switch
from supervisor_tasks.wallet.raw_transaction import append_tag
from tests.support.running_claims import (
    REFUSED,
    broken_for,
    execute,
    provider_of,
    started,
    waited,
)
from tests.support.wallet_harness import (
    CUSTOMERS,
    DEFINITION,
    ChainHarness,
    held,
    scheduled_jobs,
    settled,
)

pytestmark = pytest.mark.slow  # transactions that stay pending


def _outbid(chain: Chain, customer: Account, job_id: JobId) -> None:
    """The customer cancels the job, for a price that has it mined before all else."""
    data = function("MetaScheduler", "cancelJob").encode(bytes.fromhex(job_id[2:]))
    price = {
        "maxFeePerGas": hex(900 * 10**9),
        "maxPriorityFeePerGas": hex(400 * 10**9),
        "gas": hex(500_000),
    }
    chain.rpc.call("anvil_impersonateAccount", customer.address)
    chain.rpc.call(
        "eth_sendTransaction",
        {
            "from": customer.address,
            "to": chain.addresses.metascheduler,
            "data": data,
            **price,
        },
    )


def _claim_that_reverts(chain: Chain, provider: Account, harness: ChainHarness) -> None:
    """A job is there when its claim is estimated, and gone when it is mined."""
    (job_id,) = scheduled_jobs(chain, provider, 1)
    with held(chain):
        claim(harness.site)
        _outbid(chain, CUSTOMERS[job_id], job_id)
    settled(harness)


def test_claims_that_revert_when_mined__alarm_and_ever_fewer__until_one_succeeds(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    for _ in range(claim_backoff.MAX_REVERTED_CLAIMS):
        assert harness.alarms() == set()
        _claim_that_reverts(chain, provider, harness)
    assert harness.states() == ["REVERTED"] * 3
    (alarm,) = harness.site.ledger.alarms.all()
    assert alarm.name == AlarmName.CLAIMS_REVERTING
    assert (
        alarm.details["purpose"],
        alarm.details["in_a_row"],
        alarm.details["next_in_s"],
    ) == ("claim", 3, 4.0)
    assert "NoJob" in alarm.details["error"]

    job_ids = scheduled_jobs(chain, provider, 5)
    waited(harness, -60.0)  # however slow this machine is
    claim(harness.site)
    assert len(harness.rows()) == 3
    waited(harness, 65.0)
    with held(chain):
        claim(harness.site)
        claim(harness.site)
        assert len(harness.rows()) == 4
    settled(harness)
    assert harness.alarms() == set()
    claim(harness.site)
    settled(harness)
    assert {chain.job(job_id).status for job_id in job_ids} == {ChainStatus.SCHEDULED}


def test_claims__ever_longer_jobs_among_others__few_run_out_of_gas(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    """A claim's gas is estimated with the first job that waits. A longer one behind it
    cannot be claimed with that gas, and all claims behind that one meet it, too.
    """
    jobs = set[str]()
    for length in (1, 3_000, 1, 9_000, 1, 1, 1, 27_000, 1, 1, 1, 1):
        definition = replace(DEFINITION, batch_location_hash="h" * length)
        jobs.update(scheduled_jobs(chain, provider, 1, definition))
    for _ in range(4 * len(jobs)):
        with held(chain):
            claim(harness.site)
        settled(harness)
    assert set(harness.site.ledger.jobs(sorted(jobs))) == jobs
    counted = Counter(harness.states())
    assert counted["MINED"] == len(jobs)
    # those behind the second job, and no more than succeed from then on
    assert counted["REVERTED"] <= len(jobs) - 1 + 4


def test_claims__that_revert_now_and_then__are_no_alarm(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    for _ in range(2):
        for _ in range(claim_backoff.MAX_REVERTED_CLAIMS - 1):
            _claim_that_reverts(chain, provider, harness)
        scheduled_jobs(chain, provider, 1)
        claim(harness.site)
        settled(harness)
    assert harness.alarms() == set()


def test_claims_paused__nothing_new_is_claimed__cancellations_are(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    (job_id,) = scheduled_jobs(chain, provider, 1)
    claim(harness.site)
    settled(harness)
    harness.site.ledger.switches.set(Switch.CLAIMING_PAUSED, "maintenance")
    scheduled_jobs(chain, provider, 1)
    chain.customers.cancel_job(CUSTOMERS[job_id], job_id)
    claim(harness.site)
    settled(harness)
    assert [purpose for (purpose,) in harness.rows("purpose")] == [
        "claim",
        "claim-cancelling",
    ]
    harness.site.ledger.switches.unset(Switch.CLAIMING_PAUSED)
    claim(harness.site)
    assert [purpose for (purpose,) in harness.rows("purpose")] == [
        "claim",
        "claim-cancelling",
        "claim",
    ]


def test_contract_retired__alarm_and_no_claim__until_it_is_open(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider, 1)
    admin = chain.account("admin")
    chain.send(admin, "MetaScheduler", "setEnableRequestNewJob", False)
    try:
        claim(harness.site)
        assert AlarmName.CONTRACT_RETIRED in harness.alarms()
        assert harness.rows() == []
    finally:
        chain.send(admin, "MetaScheduler", "setEnableRequestNewJob", True)
    claim(harness.site)
    assert AlarmName.CONTRACT_RETIRED not in harness.alarms()
    assert len(harness.rows()) == 1


def test_claim__no_estimate_for_it__cancellations_are_claimed_all_the_same(
    chain: Chain, harness: ChainHarness
) -> None:
    running = started(harness, provider_of(harness))
    (waiting,) = scheduled_jobs(chain, provider_of(harness), 1)
    chain.customers.cancel_job(CUSTOMERS[running], running)
    claims_next = append_tag(
        CLAIM.encode(), harness.account.transactions.instance_tag()
    )[2:].ljust(64, "0")
    with broken_for(chain, claims_next, "fe", at="00"):
        with pytest.raises(RpcUnavailableError, match="gives no estimate"):
            claim(harness.site)
        settled(harness)
        assert harness.site.ledger.jobs([running])[running].cancel_requested
    claim(harness.site)
    settled(harness)
    assert waiting in harness.site.ledger.jobs([waiting])


@pytest.mark.parametrize("ends_by", ["one that passes", "an empty queue"])
def test_claim__refused_at_the_estimate__the_operator_is_called_a_minute_later(
    chain: Chain, harness: ChainHarness, ends_by: str
) -> None:
    running = started(harness, provider_of(harness))
    (waiting,) = scheduled_jobs(chain, provider_of(harness), 1)
    chain.customers.cancel_job(CUSTOMERS[running], running)
    claims_next = append_tag(
        CLAIM.encode(), harness.account.transactions.instance_tag()
    )[2:].ljust(64, "0")
    with broken_for(chain, claims_next, REFUSED, at="00"):
        claim(harness.site)
        settled(harness)
        assert harness.site.ledger.jobs([running])[running].cancel_requested
        claim(harness.site)
        assert harness.alarms() == set()
        execute(
            harness,
            "UPDATE facts SET since = since - interval '1 minute' WHERE name LIKE 'condition.estimate_rejected.%'",
        )
        claim(harness.site)
        (alarm,) = harness.site.ledger.alarms.all()
        assert (alarm.name, alarm.details["purpose"]) == (
            AlarmName.CLAIMS_REVERTING,
            "claim",
        )
        assert alarm.details["estimated"] is True
        assert "revert" in alarm.details["error"]
        harness.site.ledger.switches.set(Switch.CLAIMING_PAUSED, "to read the error")
        claim(harness.site)
        assert harness.alarms() == {AlarmName.CLAIMS_REVERTING}, "a pause mends nothing"
        harness.site.ledger.switches.unset(Switch.CLAIMING_PAUSED)
        if ends_by == "an empty queue":
            chain.customers.cancel_job(CUSTOMERS[waiting], waiting)
            claim(harness.site)
            assert harness.alarms() == set()
            return
    claim(harness.site)
    assert harness.alarms() == set()
    settled(harness)
    assert waiting in harness.site.ledger.jobs([waiting])
