"""Jobs whose definition is no text, ours and others', on a real chain: they end by
themselves and delay no other job.
"""

from dataclasses import replace

import pytest
from sqlalchemy import Engine

from devgrid.chain.chain import Chain
from devgrid.chain.model import Account, ChainNode, ChainPrices
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.abi_codec import event, function
from supervisor_tasks.chain.contract import CLAIMED, TOPICS, report_call
from supervisor_tasks.chain_events.event_logs import decode_logs
from supervisor_tasks.indexer.scan import scan
from supervisor_tasks.jobs.claim import claim
from supervisor_tasks.jobs.model import ChainStatus, JobId, State, StatusUpdate
from supervisor_tasks.jobs.report import report
from tests.support.wallet_harness import (
    DEFINITION,
    ChainHarness,
    registered,
    scheduled_jobs,
    settled,
)

PLACE = "@@@@"
HOSTILE = {
    "not UTF-8": b"\xff\xfe\x80\xff",
    "a surrogate": b"a\xed\xa0\x80",
    "NUL": b"a\0b\0",
}


@pytest.fixture
def harness(harness: ChainHarness) -> ChainHarness:
    """The chain services of a fleet that has read all blocks."""
    scan(harness.site)
    return harness


def hostile_job(
    chain: Chain, provider: str, words: bytes, field: str = "hash"
) -> JobId:
    """A job of that provider whose definition has these bytes in its location hash, or
    in a label.
    """
    customer = chain.new_account()
    chain.admin.mint_credits(customer.address, 10**24)
    chain.customers.approve(customer, 10**20)
    where = {
        "hash": replace(DEFINITION, batch_location_hash=PLACE),
        "key": replace(DEFINITION, uses=((PLACE, "v"),)),
        "value": replace(DEFINITION, affinity=(("k", "=", PLACE),)),
    }[field]
    request = function("MetaScheduler", "requestNewJob")
    data = request.encode(where.to_abi(), 10**20, bytes(32), False)
    assert data.count(PLACE.encode().hex()) == 1
    call = {
        "to": chain.addresses.metascheduler,
        "data": data.replace(PLACE.encode().hex(), words.hex()),
    }
    (receipt,) = chain.receipts(chain.broadcast(customer, [{**call, "gas": 1_000_000}]))
    requested = event("MetaScheduler", "NewJobRequestEvent")
    (log,) = [log for log in receipt["logs"] if log["topics"][0] == requested.topic]
    job_id = JobId("0x" + requested.decode(log["data"])[0].hex())
    chain.admin.meta_schedule([job_id], provider)
    return job_id


def account_of(harness: ChainHarness) -> Account:
    return Account(
        harness.account.address, "0x" + bytes(harness.account._account.key).hex()
    )


def claimed_by(harness: ChainHarness) -> None:
    claim(harness.site)
    settled(harness)


@pytest.mark.parametrize("words", HOSTILE.values(), ids=HOSTILE)
def test_hostile_job__hash_is_no_text__ends_free_with_a_reason_and_others_go_on(
    chain: Chain, harness: ChainHarness, words: bytes
) -> None:
    bad = hostile_job(chain, harness.account.address, words)
    (good,) = scheduled_jobs(chain, account_of(harness), 1)
    claimed_by(harness)
    jobs = harness.site.ledger.jobs([bad, good])
    assert jobs[good].state is State.CLAIMED
    assert jobs[bad].state is State.ENDED
    report(harness.site)
    settled(harness)
    assert harness.site.ledger.jobs([bad])[bad].state is State.SETTLED
    on_chain = chain.job(bad)
    assert on_chain.status is ChainStatus.FAILED
    assert on_chain.final_cost_wei == 0
    assert "batchLocationHash is " in on_chain.last_error
    scan(harness.site)
    assert harness.alarms() == set()


@pytest.mark.parametrize("field", ["key", "value"])
@pytest.mark.parametrize("words", HOSTILE.values(), ids=HOSTILE)
def test_hostile_job__label_is_no_text__is_claimed_like_any_other(
    chain: Chain, harness: ChainHarness, words: bytes, field: str
) -> None:
    job_id = hostile_job(chain, harness.account.address, words, field)
    claimed_by(harness)
    scan(harness.site)
    assert harness.site.ledger.jobs([job_id])[job_id].state is State.CLAIMED


def test_hostile_job__price_0_makes_its_limit_too_large__ends_with_a_reason(
    chain: Chain, empty_database: Engine
) -> None:
    account = chain.new_account()
    chain.register_provider(account, [ChainNode(2, 32, 64_000)], ChainPrices(0, 0, 0))
    harness = ChainHarness.of(chain, account, empty_database)
    scan(harness.site)
    (job_id,) = scheduled_jobs(chain, account, 1)
    claimed_by(harness)
    scan(harness.site)
    assert harness.site.ledger.jobs([job_id])[job_id].state is State.ENDED
    report(harness.site)
    settled(harness)
    assert chain.job(job_id).status is ChainStatus.FAILED
    assert "time limit (minutes) is 9223372036854775807" in chain.job(job_id).last_error


def test_scan__the_claim_and_what_came_of_the_job_lie_in_one_stretch__is_all_heard(
    chain: Chain, harness: ChainHarness
) -> None:
    """After a long outage, or with a ledger that was restored."""
    (job_id,) = scheduled_jobs(chain, account_of(harness), 1)
    chain.send(account_of(harness), "MetaScheduler", "claimNextJob")
    running = {
        "data": report_call(job_id, StatusUpdate(ChainStatus.RUNNING)),
        "gas": 1_000_000,
    }
    chain.receipts(
        chain.broadcast(
            account_of(harness), [{"to": chain.addresses.metascheduler, **running}]
        )
    )
    assert chain.job(job_id).status is ChainStatus.RUNNING
    scan(harness.site)
    assert (
        harness.site.ledger.jobs([job_id])[job_id].chain_status is ChainStatus.RUNNING
    )


def test_scan__hostile_jobs_of_another_provider__goes_on_behind_them(
    chain: Chain, harness: ChainHarness
) -> None:
    other = registered(chain)
    theirs = [hostile_job(chain, other.address, words) for words in HOSTILE.values()]
    for _ in theirs:
        chain.send(other, "MetaScheduler", "claimNextJob")
    (ours,) = scheduled_jobs(chain, account_of(harness), 1)
    chain.send(account_of(harness), "MetaScheduler", "claimNextJob")
    scan(harness.site)
    assert set(harness.site.ledger.jobs([*theirs, ours])) == {ours}
    cursor = harness.site.ledger.cursors.of("contract")
    assert cursor is not None
    assert cursor[0] == chain.block_number()
    assert harness.alarms() == set()


def test_decode_logs__log_cannot_be_read__is_an_alarm_and_others_are_decoded(
    chain: Chain, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, account_of(harness), 2)
    for _ in range(2):
        chain.send(account_of(harness), "MetaScheduler", "claimNextJob")
    contract = harness.site.chain.contract
    method, params = contract.logs_call(0, chain.block_number())
    logs = contract.rpc.call(method, *params)
    claims = [log for log in logs if log["topics"][0] == CLAIMED.topic]
    whole = len(contract.decode_events(logs)[0])
    for cut in (len("0x") + 3 * 64, len("0x") + 10):
        claims[-2]["data"] = claims[-1]["data"][:cut]
        assert len(decode_logs(harness.site.ledger, contract, logs)) == whole - 1
        (alarm,) = harness.site.ledger.alarms.all()
        assert alarm.name == AlarmName.CHAIN_LOG_UNREADABLE
        assert alarm.details["tx_hash"] == claims[-2]["transactionHash"]
        assert alarm.details["topic"] in TOPICS
