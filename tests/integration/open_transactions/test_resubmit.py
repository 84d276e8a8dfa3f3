"""What becomes of a transaction that is not simply mined, on a real chain and in a real
ledger.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, text
from structlog.testing import capture_logs

from devgrid.chain.chain import Chain
from devgrid.chain.model import Account
from devgrid.processes import Processes, wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.contract import CLAIM, report_call
from supervisor_tasks.chain.rpc.client import Rpc
from supervisor_tasks.execution.effect_failures import update_effect_alarms
from supervisor_tasks.indexer.scan import scan
from supervisor_tasks.jobs.claim import claim
from supervisor_tasks.jobs.model import ChainStatus, JobId, StatusUpdate
from supervisor_tasks.jobs.report import report
from supervisor_tasks.ledger.facts import TRANSACTION_REQUESTS
from supervisor_tasks.ledger.operator_actions import request_of_transaction
from supervisor_tasks.open_transactions.resubmit import MAX_CERTAIN_TRANSACTIONS
from supervisor_tasks.wallet.pending_policy import CANCEL_NONCE_AFTER_S
from supervisor_tasks.wallet.raw_transaction import TransactionFields
from supervisor_tasks.wallet.transaction_writer import WalletEmptyError, Write
from tests.support.rpc_proxies import rejecting_node
from tests.support.running_claims import due, execute, provider_of, started, waited
from tests.support.wallet_harness import (
    GAS,
    GWEI,
    ChainHarness,
    claims,
    databases,
    empty,
    gas_limit,
    held,
    registered,
    scheduled_jobs,
    settled,
    sign_again,
    wait_for_receipts,
)

pytestmark = pytest.mark.slow  # transactions that stay pending


@pytest.fixture(scope="module")
def two_databases(processes: Processes) -> Iterator[list[Engine]]:
    with databases(processes, "one", "two") as engines:
        yield engines


@pytest.fixture
def empty_databases(two_databases: list[Engine]) -> list[Engine]:
    """Two databases with the ledger's tables, without the rows of earlier tests."""
    for engine in two_databases:
        empty(engine)
    return two_databases


@pytest.fixture
def empty_database(empty_databases: list[Engine]) -> Engine:
    """The first of the two."""
    return empty_databases[0]


def base_fee(chain: Chain, wei: int) -> None:
    """The next block asks for so much."""
    chain.rpc.call("anvil_setNextBlockBaseFeePerGas", hex(wei))
    chain.mine()


def test_mined__receipts_bring_jobs__once_however_often_they_are_read(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    job_ids = scheduled_jobs(chain, provider, 3)
    claim(harness.site)
    settled(harness)
    assert set(harness.site.ledger.jobs(job_ids)) == set(job_ids)
    with harness.engine.begin() as connection:
        connection.execute(
            text("UPDATE transactions SET state = 'SENT', done_at = NULL")
        )
        before = connection.scalar(text("SELECT count(*) FROM events"))
    settled(harness)
    scan(harness.site)
    with harness.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM events")) == before


@pytest.mark.parametrize(("jobs", "dispatched"), [(2, ["claim"]), (1, [])])
def test_mined__as_many_claims_as_a_batch__the_next_batch_follows_at_once(
    chain: Chain,
    provider: Account,
    harness: ChainHarness,
    jobs: int,
    dispatched: list[str],
) -> None:
    tasks = list[str]()
    harness.site = replace(
        harness.site,
        chain_services=replace(harness.site.chain, claim_batch=2),
        dispatch=tasks.append,
    )
    scheduled_jobs(chain, provider, jobs)
    claim(harness.site)
    tasks.clear()
    settled(harness)
    assert tasks == dispatched


def test_vanished__transactions_that_the_node_dropped__same_bytes_are_sent_again(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider, 2)
    with held(chain):
        harness.writer.send(claims(2))
        for (tx_hash,) in harness.rows("hash"):
            chain.rpc.call("anvil_dropTransaction", tx_hash)
        with harness.engine.begin() as connection:  # as when the time has passed
            connection.execute(
                text("UPDATE transactions SET sent_at = now() - interval '1 minute'")
            )
        harness.follow()
    settled(harness)
    assert harness.states() == ["MINED", "MINED"]
    assert harness.signatures() == 2


def test_reverted__after_the_fact__names_the_error(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    (job_id,) = scheduled_jobs(chain, provider, 1)
    harness.writer.send(
        [
            Write(
                "end",
                "report",
                report_call(job_id, StatusUpdate(ChainStatus.FINISHED)),
                job_id,
                gas=GAS,
            )
        ]
    )
    settled(harness)
    assert harness.rows("state, error") == [
        ("REVERTED", "the contract reverts with InvalidTransition(1, 5)")
    ]


def test_reverted__for_want_of_gas__says_so(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider, 1)
    harness.writer.send([replace(claims(1)[0], gas=60_000)])
    settled(harness)
    assert harness.rows("state, error") == [
        ("REVERTED", "the contract reverts with OutOfGas(60000)")
    ]


def test_base_fee_jumps__open_transactions__are_signed_again_for_more(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider, 3)
    with held(chain):
        harness.writer.send(claims(3))
        paid = [int(fee) for (fee,) in harness.rows("max_fee_wei")]
        base_fee(chain, max(paid) * 3)
    assert harness.follow()
    wait_until(lambda: not harness.follow(), "replacements to be mined", 60.0, 0.1)
    assert harness.states() == ["MINED"] * 3
    assert harness.signatures() == 6
    again = [int(fee) for (fee,) in harness.rows("max_fee_wei")]
    assert all(new * 10 >= old * 11 for new, old in zip(again, paid, strict=True))
    mined = {
        chain.rpc.call("eth_getTransactionByHash", tx_hash)["nonce"]
        for (tx_hash,) in harness.rows("hash")
    }
    assert mined == {hex(nonce) for (nonce,) in harness.rows("nonce")}
    base_fee(chain, GWEI)


def test_base_fee_jumps__first_transaction_is_a_stopped_clusters__is_signed_again(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider, 2)
    partner = ChainHarness.of(chain, provider, harness.engine, cluster="there")
    partner.site.ledger.periodic_runs.record("scan")
    with held(chain):
        partner.writer.send(claims(1))
        harness.writer.send(claims(1, first=1))
        paid = [int(fee) for (fee,) in harness.rows("max_fee_wei")]
        base_fee(chain, max(paid) * 3)
    wait_until(
        lambda: harness.follow() and harness.signatures() == 3,
        "its own to be signed again",
        60.0,
        0.1,
    )
    assert harness.follow()
    assert harness.signatures() == 3  # the other fleet is at work
    with harness.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE periodic_runs SET succeeded_at = now() - interval '4 minutes'"
                " WHERE cluster = 'there' AND name = 'scan'"
            )
        )
    settled(harness)
    assert harness.signatures() == 4
    assert harness.rows("cluster, state") == [("there", "SENT"), ("here", "MINED")]
    settled(partner)
    assert harness.states() == ["MINED"] * 2
    base_fee(chain, GWEI)


def test_replaced__and_the_first_signature_is_mined__counts(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider, 1)
    with held(chain):
        harness.writer.send(claims(1))
        ((first_raw,),) = harness.rows("raw")
        ((first_hash,),) = harness.rows("hash")
        sign_again(harness.account)
        ((second_hash,),) = harness.rows("hash")
        assert second_hash != first_hash
        chain.rpc.call("anvil_dropTransaction", second_hash)
        chain.rpc.call("eth_sendRawTransaction", "0x" + bytes(first_raw).hex())
    settled(harness)
    assert harness.rows("state, hash") == [("MINED", first_hash)]


def test_replaced__first_signature_lost_its_block__is_replaced_by_the_same_bytes(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider, 1)
    present = "hash, raw, max_fee_wei, priority_fee_wei"
    with held(chain):
        harness.writer.send(claims(1))
        (first,) = harness.rows(present)
        sign_again(harness.account)
        (second,) = harness.rows(present)
        # as it is opened again when the block of the first one is lost
        with harness.engine.begin() as connection:
            back = f"UPDATE transactions SET ({present}) = (:hash, :raw, :most, :tip)"  # noqa: S608
            connection.execute(
                text(back),
                dict(zip(("hash", "raw", "most", "tip"), first, strict=True)),
            )
        sign_again(harness.account)
        assert harness.rows(present) == [second]
        assert harness.signatures() == 2
    settled(harness)
    assert harness.states() == ["MINED"]


def test_market_above_the_cap__alarm__and_goes_on_when_it_falls(
    chain: Chain, provider: Account, empty_databases: list[Engine]
) -> None:
    harness = ChainHarness.of(chain, provider, empty_databases[0], cap_wei=5 * GWEI)
    scheduled_jobs(chain, provider, 1)
    base_fee(chain, GWEI)
    with held(chain):
        harness.writer.send(claims(1))
        base_fee(chain, 50 * GWEI)
        wait_until(
            lambda: (
                harness.follow() and AlarmName.TRANSACTION_STUCK in harness.alarms()
            ),
            "the alarm",
            60.0,
            0.1,
        )
        assert max(int(fee) for (fee,) in harness.rows("max_fee_wei")) <= 5 * GWEI
        base_fee(chain, GWEI)
        with harness.engine.begin() as connection:
            connection.execute(
                text("UPDATE transactions SET sent_at = now() - interval '1 minute'")
            )
    settled(harness)
    assert harness.states() == ["MINED"]
    claim(harness.site)
    assert AlarmName.TRANSACTION_STUCK not in harness.alarms()


def wants_a_tip(signed: TransactionFields) -> str | None:
    """A node that suggests no tip and takes nothing without one, in geth's words."""
    tip_wei = signed.fees.priority_fee_wei
    return (
        f"transaction underpriced: gas tip cap {tip_wei}, minimum needed {GWEI}"
        if tip_wei < GWEI
        else None
    )


def test_node__suggests_no_tip_but_wants_one__gets_one_at_once_at_the_same_fee(
    chain: Chain, provider: Account, empty_databases: list[Engine]
) -> None:
    scheduled_jobs(chain, provider, 1)
    base_fee(chain, 25 * GWEI)
    with rejecting_node(chain, wants_a_tip, {"eth_maxPriorityFeePerGas": "0x0"}) as url:
        harness = ChainHarness.of(chain, provider, empty_databases[0], Rpc.at(url))
        harness.writer.send(claims(1))
        first = harness.sent_transactions.all()[0].fees
        settled(harness)
    assert first.priority_fee_wei == 0
    assert harness.states() == ["MINED"]
    assert harness.signatures() == 2
    assert harness.alarms() == set()
    ((most_wei, tip_wei),) = harness.rows("max_fee_wei, priority_fee_wei")
    assert tip_wei == GWEI
    assert most_wei <= first.max_fee_wei + GWEI
    base_fee(chain, GWEI)


def test_node__refuses_with_an_unknown_error__nonce_is_given_up_and_no_fee_is_raised(
    chain: Chain, provider: Account, empty_databases: list[Engine]
) -> None:
    scheduled_jobs(chain, provider, 2)
    with rejecting_node(
        chain, lambda signed: "the sky is falling" if signed.gas == GAS + 1 else None
    ) as url:
        harness = ChainHarness.of(chain, provider, empty_databases[0], Rpc.at(url))
        harness.writer.send(
            [replace(claims(1)[0], idempotency_key="never", gas=GAS + 1)]
        )
        harness.writer.send(claims(1))
        chain.mine(5)
        for _ in range(3):
            harness.age_transactions()
            assert harness.follow()
        assert harness.follow()
        assert harness.signatures() == 2
        waited(harness, CANCEL_NONCE_AFTER_S)
        settled(harness)
    assert harness.states() == ["REVERTED", "MINED"]
    assert "no node took it" in harness.rows("error")[0][0]
    assert harness.writer.missing(["never"]) == {"never"}


def test_node__takes_no_transaction_for_a_while__all_are_mined_as_they_were_signed(
    chain: Chain, provider: Account, empty_databases: list[Engine]
) -> None:
    scheduled_jobs(chain, provider, 3)
    trouble = ["method handler crashed"]
    with rejecting_node(chain, lambda _: trouble[0] if trouble else None) as url:
        harness = ChainHarness.of(chain, provider, empty_databases[0], Rpc.at(url))
        harness.writer.send(claims(3))
        chain.mine(5)
        assert harness.follow()
        waited(harness, 2 * CANCEL_NONCE_AFTER_S)
        harness.age_transactions()  # in which no process asked
        assert harness.follow()
        trouble.clear()
        settled(harness)
    assert harness.states() == ["MINED"] * 3
    assert harness.signatures() == 3


def test_fee__above_the_nodes_cap__transaction_is_signed_again_when_it_costs_less(
    chain: Chain, provider: Account, empty_databases: list[Engine]
) -> None:
    scheduled_jobs(chain, provider, 1)
    base_fee(chain, 250 * GWEI)
    cap_wei = GAS * 300 * GWEI

    def fee_cap(signed: TransactionFields) -> str | None:
        dear = signed.gas * signed.fees.max_fee_wei > cap_wei
        return (
            "tx fee (1.08 ether) exceeds the configured cap (1.00 ether)"
            if dear
            else None
        )

    with rejecting_node(chain, fee_cap) as url:
        harness = ChainHarness.of(chain, provider, empty_databases[0], Rpc.at(url))
        harness.writer.send(claims(1))
        for _ in range(5):
            base_fee(chain, 250 * GWEI)
        harness.age_transactions()
        assert harness.follow()
        assert harness.signatures() == 1
        base_fee(chain, GWEI)
        settled(harness)
    assert harness.states() == ["MINED"]
    assert harness.signatures() == 2


def test_base_fee__spikes_beyond_the_balance__same_bytes_are_mined_when_it_falls(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider, 1)
    base_fee(chain, 25 * GWEI)
    with held(chain):
        harness.writer.send(claims(1))
        chain.rpc.call("anvil_dropAllTransactions")
        chain.rpc.call("anvil_setBalance", provider.address, hex(GAS * 60 * GWEI))
        base_fee(chain, 250 * GWEI)
        harness.age_transactions()
        wait_until(
            lambda: harness.follow() and AlarmName.WALLET_EMPTY in harness.alarms(),
            "the alarm",
            60.0,
            0.1,
        )
        harness.age_transactions()
        harness.follow()
        assert harness.signatures() == 1
        (alarm,) = harness.site.ledger.alarms.all()
        assert alarm.details["needed_wei"] > GAS * 500 * GWEI
        base_fee(chain, GWEI)
    settled(harness)
    assert harness.states() == ["MINED"]
    # as when the time has passed since it was needed
    with harness.engine.begin() as connection:
        connection.execute(
            text("UPDATE alarms SET details = details || '{\"seen_s\": 0}'")
        )
    claim(harness.site)
    assert harness.alarms() == set()


def test_signed_in_a_spike__balance_is_too_low__is_signed_again_when_the_fee_falls(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider, 2)
    base_fee(chain, 250 * GWEI)
    with held(chain):
        harness.writer.send(claims(2))
        chain.rpc.call("anvil_dropAllTransactions")
        chain.rpc.call("anvil_setBalance", provider.address, hex(GAS * 60 * GWEI))
        base_fee(chain, GWEI)
        harness.age_transactions()
        harness.follow()
    settled(harness)
    assert harness.states() == ["MINED"] * 2


def test_balance_gone__nothing_new_is_signed__goes_on_after_a_top_up(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider, 3)
    with held(chain):
        harness.writer.send(claims(1))
        for (tx_hash,) in harness.rows("hash"):
            chain.rpc.call("anvil_dropTransaction", tx_hash)
        chain.rpc.call("anvil_setBalance", provider.address, "0x0")
        with pytest.raises(WalletEmptyError):
            harness.writer.send(claims(2))
        assert len(harness.rows()) == 1
        with harness.engine.begin() as connection:
            connection.execute(
                text("UPDATE transactions SET sent_at = now() - interval '1 minute'")
            )
        harness.follow()
        harness.follow()
        assert AlarmName.WALLET_EMPTY in harness.alarms()
        claim(harness.site)
        assert len(harness.rows()) == 1
    chain.rpc.call("anvil_setBalance", provider.address, hex(10**20))
    wait_until(lambda: not harness.follow(), "what was signed to be mined", 60.0, 0.1)
    claim(harness.site)
    assert AlarmName.WALLET_EMPTY not in harness.alarms()
    settled(harness)
    assert harness.states() == ["MINED"] * 3


def test_balance__enough_for_some__those_are_sent(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider, 3)
    cost_wei = GAS * (
        2 * harness.account.fetch_account_state().market.least_wei + 2 * GWEI
    )
    chain.rpc.call("anvil_setBalance", provider.address, hex(2 * cost_wei))
    with pytest.raises(WalletEmptyError):
        harness.writer.send(claims(10))
    assert 1 <= len(harness.rows()) < 10
    settled(harness)
    assert set(harness.states()) == {"MINED"}


def test_unknown_transaction__took_our_nonce__the_key_is_free_and_used_again(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    (job_id,) = scheduled_jobs(chain, provider, 1)
    claim(harness.site)
    settled(harness)
    write = Write(
        "running",
        "report",
        report_call(job_id, StatusUpdate(ChainStatus.RUNNING)),
        job_id,
        gas=GAS,
    )
    with held(chain):
        harness.writer.send([write])
        ((tx_hash,),) = [
            row
            for row in harness.rows("hash")
            if row[0] == harness.sent_transactions.all()[0].hash
        ]
        chain.rpc.call("anvil_dropTransaction", tx_hash)
        foreign(chain, provider)
    wait_until(lambda: not harness.follow(), "the nonce to be given up", 60.0, 0.2)
    assert harness.states() == ["MINED", "FOREIGN"]
    assert AlarmName.UNKNOWN_TRANSACTION_ON_ACCOUNT in harness.alarms()
    assert harness.writer.missing(["running"]) == {"running"}
    assert harness.writer.send([write]) == 1
    settled(harness)
    assert harness.states() == ["MINED", "FOREIGN", "MINED"]
    assert chain.job(job_id).status is ChainStatus.RUNNING


@pytest.mark.parametrize("written_before", [True, False])
def test_unknown_transaction__its_block_is_lost__the_nonce_is_filled(
    chain: Chain, provider: Account, harness: ChainHarness, written_before: bool
) -> None:
    (job_id,) = scheduled_jobs(chain, provider, 1)
    claim(harness.site)
    settled(harness)
    fork = chain.block_number()
    write = Write(
        "running",
        "report",
        report_call(job_id, StatusUpdate(ChainStatus.RUNNING)),
        job_id,
        gas=GAS,
    )
    with held(chain):
        harness.writer.send([write])
        chain.rpc.call("anvil_dropTransaction", harness.sent_transactions.all()[0].hash)
        foreign(chain, provider)
    wait_until(lambda: not harness.follow(), "the nonce to be given up", 60.0, 0.2)
    if written_before:
        assert harness.writer.send([write]) == 1
        settled(harness)
    chain.rpc.call("anvil_reorg", chain.block_number() - fork, [])
    with harness.engine.begin() as connection:
        harness.site.chain.blocks.take_back(connection, fork)  # as the scan does
    if not written_before:
        assert harness.writer.send([write]) == 1
    with harness.engine.begin() as connection:
        connection.execute(
            text("UPDATE signatures SET signed_at = now() - interval '1 minute'")
        )
        connection.execute(
            text("UPDATE transactions SET sent_at = now() - interval '1 minute'")
        )
    wait_until(lambda: not harness.follow(), "the nonce to be filled", 60.0, 0.2)
    assert [purpose for (purpose,) in harness.rows("purpose")] == [
        "claim",
        "fill-nonce",
        "report",
    ]
    assert harness.states() == ["MINED"] * 3
    assert chain.job(job_id).status is ChainStatus.RUNNING


def foreign(chain: Chain, account: Account) -> None:
    """Another program sends something harmless with the same key."""
    chain.broadcast(account, [{"to": account.address, "data": "0x", "gas": 21_000}])


def test_nonce_gap__first_transaction_dropped__is_sent_again_and_all_mined(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider, 3)
    with held(chain):
        harness.writer.send(claims(3))
        ((first,), *_) = harness.rows("hash")
        chain.rpc.call("anvil_dropTransaction", first)
    assert chain.rpc.call("eth_getTransactionReceipt", first) is None
    with harness.engine.begin() as connection:
        connection.execute(
            text("UPDATE transactions SET sent_at = now() - interval '1 minute'")
        )
    settled(harness)
    assert harness.states() == ["MINED"] * 3


def _claimed_behind_a_gap(
    chain: Chain, provider: Account, harness: ChainHarness, gap: int
) -> int:
    """A claim that was sent a minute ago, with so many nonces before it that no
    transaction has. Returns the first of them.
    """
    scheduled_jobs(chain, provider, 1)
    nonce = harness.account.fetch_account_state().mined_nonces
    chain.rpc.call("anvil_setNonce", provider.address, hex(nonce + gap))
    with held(chain):
        harness.writer.send(claims(1))
        chain.rpc.call("anvil_setNonce", provider.address, hex(nonce))
        chain.rpc.call("anvil_dropAllTransactions")
    harness.age_transactions()
    with harness.engine.begin() as connection:
        connection.execute(
            text("UPDATE signatures SET signed_at = now() - interval '1 minute'")
        )
    return nonce


def test_nonce__without_a_signed_transaction__is_filled(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    _claimed_behind_a_gap(chain, provider, harness, 2)
    wait_until(lambda: not harness.follow(), "the gap to be filled", 60.0, 0.2)
    purposes = [purpose for (purpose,) in harness.rows("purpose")]
    assert purposes == ["fill-nonce", "fill-nonce", "claim"]
    assert harness.states() == ["MINED"] * 3


def test_nonce__signed_far_ahead__so_many_are_filled_at_a_time(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    nonce = _claimed_behind_a_gap(chain, provider, harness, 10**11)
    assert harness.follow()
    nonces = [row for (row,) in harness.rows("nonce")]
    assert nonces == [*range(nonce, nonce + MAX_CERTAIN_TRANSACTIONS), nonce + 10**11]


def test_ledger__restored_from_a_backup__goes_on_and_knows_its_own_claims(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    first = scheduled_jobs(chain, provider, 1)
    scan(harness.site)
    claim(harness.site)
    settled(harness)
    scan(harness.site)
    lost = scheduled_jobs(chain, provider, 2)
    claim(harness.site)
    wait_for_receipts(harness)
    with harness.engine.begin() as connection:  # the backup was made before
        connection.execute(text("DELETE FROM transactions WHERE state <> 'MINED'"))
    scan(harness.site)
    assert set(harness.site.ledger.jobs([*first, *lost])) == {*first, *lost}
    past = harness.site.ledger.journal.before_submission([*first, *lost])
    unknown = {
        job_id for job_id, before in past.items() if before.unknown_claim is not None
    }
    assert unknown == {*lost}  # SLURM may have them
    more = scheduled_jobs(chain, provider, 1)
    claim(harness.site)
    settled(harness)
    assert set(harness.site.ledger.jobs(more)) == set(more)


def test_former_key__open_transaction__is_followed_and_never_signed_again(
    chain: Chain, provider: Account, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider, 2)
    other = chain.new_account()
    with held(chain):
        harness.writer.send(claims(2))
        chain.rpc.call("anvil_dropAllTransactions")
        later = ChainHarness.of(chain, other, harness.engine)
        with harness.engine.begin() as connection:
            connection.execute(
                text("UPDATE transactions SET sent_at = now() - interval '1 minute'")
            )
            connection.execute(
                text(
                    "UPDATE signatures SET signed_at = now() - interval '1 hour', head = -100"
                )
            )
        later.follow()
        assert AlarmName.TRANSACTION_STUCK in later.alarms()
    wait_until(
        lambda: not later.follow(),
        "the former key's transactions to be mined",
        60.0,
        0.1,
    )
    assert later.states() == ["MINED", "MINED"]
    assert later.signatures() == 2


def test_two_fleets__on_one_wallet__each_job_is_one_fleets_and_there_is_an_alarm(
    chain: Chain, provider: Account, empty_databases: list[Engine]
) -> None:
    harnesses = [ChainHarness.of(chain, provider, engine) for engine in empty_databases]
    for harness in harnesses:
        scan(harness.site)
    job_ids = scheduled_jobs(chain, provider, 12)
    for _ in range(8):
        with held(chain):  # both see the same queue and the same nonce
            for harness in harnesses:
                claim(harness.site)
        for harness in harnesses:
            harness.follow()
    for harness in harnesses:
        wait_until(
            lambda harness=harness: not harness.follow(),  # type: ignore[misc]
            "all to be closed",
            60.0,
            0.2,
        )
        scan(harness.site)
    claim(harnesses[0].site)
    settled(harnesses[0])
    scan(harnesses[1].site)
    owned = [set(harness.site.ledger.jobs(job_ids)) for harness in harnesses]
    assert owned[0] & owned[1] == set()
    assert owned[0] | owned[1] == set(job_ids)
    assert any(
        AlarmName.UNKNOWN_TRANSACTION_ON_ACCOUNT in harness.alarms()
        for harness in harnesses
    )
    assert {chain.job(job_id).status for job_id in job_ids} == {ChainStatus.SCHEDULED}


def test_two_ledgers__the_same_claim_at_the_same_nonce__is_signed_differently(
    chain: Chain, provider: Account, empty_databases: list[Engine]
) -> None:
    scheduled_jobs(chain, provider, 1)
    hashes = set()
    with held(chain):
        for engine in empty_databases:
            harness = ChainHarness.of(chain, provider, engine)
            harness.writer.send(claims(1))
            hashes.add(harness.rows("nonce, hash")[0])
        chain.rpc.call("anvil_dropAllTransactions")
    assert len({nonce for nonce, _ in hashes}) == 1
    assert len(hashes) == 2


def test_follow__600_open_transactions__takes_few_requests(
    chain: Chain, empty_databases: list[Engine]
) -> None:
    account = chain.new_account(ether=10_000)
    harness = ChainHarness.of(chain, account, empty_databases[0])
    with held(chain):
        writes = [
            Write(f"n:{n}", "claim", CLAIM.encode(), gas=30_000) for n in range(600)
        ]
        assert harness.writer.send(writes) == 600
        posts = list[int]()
        inner = harness.account.rpc._post

        def post(calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
            posts.append(len(calls))
            return inner(calls)

        harness.account.rpc._post = post  # type: ignore[method-assign]
        harness.follow()
        assert len(posts) <= 10
        assert max(posts) <= 100
        while int(chain.rpc.call("txpool_status")["pending"], 16):
            chain.mine()
    settled(harness)
    assert set(harness.states()) == {"REVERTED"}


HOSTILE = "no\0 \ud800 at all"


def test_reverted__job_is_not_on_the_contract__delays_no_other(
    chain: Chain, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider_of(harness), 1)
    lost = JobId("0x" + "ab" * 32)
    end = Write(
        "end",
        "report",
        report_call(lost, StatusUpdate(ChainStatus.FINISHED)),
        lost,
        gas=GAS,
    )
    harness.writer.send([end, *claims(1)])
    settled(harness)
    assert harness.states() == ["REVERTED", "MINED"]


@pytest.mark.parametrize(
    "gas", [9_000_000, 100], ids=["more than a block holds", "less than its data cost"]
)
def test_transaction__all_nodes_refuse_it__its_nonce_is_filled_and_its_key_freed(
    chain: Chain, harness: ChainHarness, gas: int
) -> None:
    scheduled_jobs(chain, provider_of(harness), 1)
    with gas_limit(chain, 8_000_000):
        harness.writer.send([replace(claims(1)[0], idempotency_key="never", gas=gas)])
        harness.writer.send(claims(1))
        assert harness.states() == ["SIGNED", "SENT"]
        settled(harness)
    assert harness.states() == ["REVERTED", "MINED"]
    assert "no node took it" in harness.rows("error")[0][0]
    assert harness.writer.missing(["never"]) == {"never"}
    assert harness.alarms() == set()


def test_transaction__given_up_and_mined_all_the_same__counts(
    chain: Chain, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider_of(harness), 1)
    with held(chain):
        harness.writer.send(claims(1))
        ((raw, first_hash),) = harness.rows("raw, hash")
        state = harness.account.fetch_account_state()
        harness.sent_transactions.cancel_with_replacement(
            harness.sent_transactions.all(), state.market, state.head
        )
        chain.rpc.call("anvil_dropTransaction", harness.sent_transactions.all()[0].hash)
        chain.rpc.call("eth_sendRawTransaction", "0x" + bytes(raw).hex())
    settled(harness)
    assert harness.rows("state, hash") == [("MINED", first_hash)]


def test_balance__too_low_to_replace_any_transaction__raises_an_alarm(
    chain: Chain, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider_of(harness), 2)
    with held(chain):
        harness.writer.send(claims(2))
        most = max(int(fee) for (fee,) in harness.rows("max_fee_wei"))
        chain.rpc.call("anvil_setBalance", harness.account.address, hex(GAS * most - 1))
        chain.rpc.call("anvil_setNextBlockBaseFeePerGas", hex(3 * most))
        chain.mine()
        wait_until(
            lambda: harness.follow() and harness.alarms() == {AlarmName.WALLET_EMPTY},
            "the alarm",
            60.0,
            0.1,
        )
        assert harness.signatures() == 2
        chain.rpc.call("anvil_setBalance", harness.account.address, hex(10**20))
        wait_until(
            lambda: harness.follow() and harness.signatures() == 4,
            "what was paid for to be signed again",
            60.0,
            0.1,
        )
    settled(harness)
    assert harness.states() == ["MINED", "MINED"]
    claim(harness.site)
    assert harness.alarms() == set()
    chain.rpc.call("anvil_setNextBlockBaseFeePerGas", hex(10**9))
    chain.mine()


def test_transaction__is_not_mined_for_long__the_operator_is_called_until_it_is(
    chain: Chain, harness: ChainHarness
) -> None:
    started(harness, provider_of(harness))
    with held(chain):
        report(harness.site)
        claim(harness.site)
        due(harness)
        report(harness.site)
        assert harness.alarms() == set()
        execute(harness, "UPDATE facts SET since = now() - interval '6 minutes'")
        execute(
            harness,
            "UPDATE effects SET due_at = now(), failing_since = failing_since - interval '6 minutes'",
        )
        claim(harness.site)
        assert harness.follow()  # which finds nothing to be done
        assert harness.alarms() == {AlarmName.TRANSACTION_STUCK}
        report(harness.site)
        update_effect_alarms(harness.site.ledger)
        assert harness.alarms() == {
            AlarmName.TRANSACTION_STUCK,
            AlarmName.EFFECT_OVERDUE,
        }
    settled(harness)
    update_effect_alarms(harness.site.ledger)
    assert harness.alarms() == set()


def test_is_confirmed_unmined__signed_very_often__asks_for_all_signatures(
    chain: Chain, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider_of(harness), 1)
    harness.writer.send(claims(1))
    execute(
        harness,
        """INSERT INTO signatures (hash, transaction_id, raw, max_fee_wei, priority_fee_wei, head)
        SELECT '0x' || lpad(to_hex(n), 64, '0'), id, raw, 1, 1, 0 FROM transactions, generate_series(1, 150) AS n""",
    )
    (sent,) = harness.sent_transactions.all()
    assert len(sent.hashes) == 151
    assert sent.hashes[0] == sent.hash
    assert not harness.sent_transactions.is_confirmed_unmined(
        sent, harness.account.fetch_account_state()
    )


def test_words_of_a_node__that_postgres_cannot_hold__are_kept_all_the_same(
    chain: Chain, harness: ChainHarness
) -> None:
    with held(chain):
        harness.writer.send(claims(1))
        harness.account.transactions.broadcast([(harness.rows("hash")[0][0], HOSTILE)])
        assert harness.rows("error") == [("no\\x00 \\ud800 at all",)]
    harness.site.ledger.alarms.on(
        AlarmName.CHAIN_NOT_ANSWERING, error=HOSTILE, nodes={HOSTILE: [HOSTILE, 7]}
    )
    (alarm,) = harness.site.ledger.alarms.all()
    assert alarm.details["error"] == "no\\x00 \\ud800 at all"
    settled(harness)


def open_one(harness: ChainHarness) -> int:
    """A claim that waits to be mined; its id."""
    harness.writer.send(claims(1))
    ((row_id,),) = harness.rows("id")
    assert isinstance(row_id, int)
    return row_id


def test_bump__asked_for__signs_the_same_call_for_a_higher_fee_once(
    chain: Chain, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider_of(harness), 1)
    with held(chain):
        row_id = open_one(harness)
        ((before_wei,),) = harness.rows("max_fee_wei")
        harness.follow()
        assert harness.signatures() == 1
        request_of_transaction(harness.site.ledger, row_id, "bump")
        harness.follow()
        harness.follow()
        ((after_wei,),) = harness.rows("max_fee_wei")
        assert (harness.signatures(), after_wei > before_wei) == (2, True)
        assert harness.site.ledger.facts.get(TRANSACTION_REQUESTS) is None
    settled(harness)
    assert harness.states() == ["MINED"]


def test_request__of_another_release__is_logged_and_holds_up_no_other(
    chain: Chain, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider_of(harness), 2)
    with held(chain):
        harness.writer.send(claims(2))
        (first,), (second,) = harness.rows("id")
        request_of_transaction(harness.site.ledger, first, "of_another_release")
        request_of_transaction(harness.site.ledger, second, "bump")
        signatures = harness.signatures()
        with capture_logs() as logs:
            harness.follow()
        assert harness.signatures() == signatures + 1
        (line,) = [
            each for each in logs if each["event"] == "transaction_request_unknown"
        ]
        assert (line["transaction"], line["request"]) == (
            str(first),
            "of_another_release",
        )
        assert harness.site.ledger.facts.get(TRANSACTION_REQUESTS) is None
    settled(harness)


def test_bump__at_the_bound__is_told_and_not_signed(
    chain: Chain, empty_database: Engine
) -> None:
    account = registered(chain)
    harness = ChainHarness.of(chain, account, empty_database, cap_wei=2 * 10**9)
    scheduled_jobs(chain, provider_of(harness), 1)
    with held(chain):
        row_id = open_one(harness)
        for _ in range(20):  # each adds an eighth, from one gwei at least
            request_of_transaction(harness.site.ledger, row_id, "bump")
            harness.follow()
        ((fee_wei,),) = harness.rows("max_fee_wei")
        assert fee_wei == 2 * 10**9
        assert AlarmName.TRANSACTION_STUCK in harness.alarms()
    settled(harness)


def test_cancel__requested__an_empty_transaction_is_mined_and_the_key_freed(
    chain: Chain, harness: ChainHarness
) -> None:
    scheduled_jobs(chain, provider_of(harness), 1)
    with held(chain):
        row_id = open_one(harness)
        request_of_transaction(harness.site.ledger, row_id, "cancel")
        harness.follow()
        assert harness.signatures() == 2
    settled(harness)
    assert harness.states() == ["REVERTED"]
    assert harness.writer.missing(["claim:0"]) == {"claim:0"}
    harness.writer.send(claims(1))
    settled(harness)
    assert harness.states() == ["REVERTED", "MINED"]
