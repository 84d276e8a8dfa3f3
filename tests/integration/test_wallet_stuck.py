"""Transactions that come to nothing: they hold nobody up, somebody is called, and nothing is paid for without end."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from devgrid.chain import Account, Chain, Node, Prices
from devgrid.process import Processes, wait_until
from devgrid.state import private_processes
from supervisor_tasks.chain.contract import report_call
from supervisor_tasks.chain.wallet import Write
from supervisor_tasks.events import ScriptFetched, SlurmStarted, SubmitStarted, Submitted
from supervisor_tasks.job import ChainStatus, JobId, Report, SlurmId
from supervisor_tasks.journey.claim import claim
from supervisor_tasks.journey.drain import watch_effects
from supervisor_tasks.journey.report import report
from supervisor_tasks.ledger.operator import AlarmName
from supervisor_tasks.ledger.store import Change
from tests.integration.wallets import GAS, Fleet, claims, databases, empty, held, scheduled_jobs

REVERTS_WHEN_PAID_FOR = "0x3a600557005b60006000fd"  # an estimate has no gas price
STARTED = (ScriptFetched("echo", ""), SubmitStarted(10), Submitted(SlurmId(7)), SlurmStarted())
HOSTILE = "no\0 \ud800 at all"


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with private_processes() as running:
        yield running


@pytest.fixture(scope="module")
def database(processes: Processes) -> Iterator[Engine]:
    with databases(processes, "one") as (engine,):
        yield engine


@pytest.fixture(scope="module")
def chain(processes: Processes) -> Chain:
    return Chain.start(processes)


@pytest.fixture
def fleet(chain: Chain, database: Engine) -> Fleet:
    empty(database)
    account = chain.new_account()
    chain.register_provider(account, [Node(2, 32, 64_000)], Prices())
    return Fleet.of(chain, account, database)


def settled(fleet: Fleet) -> None:
    wait_until(lambda: not fleet.follow(), "all transactions to be closed", 60.0, 0.05)


def started(fleet: Fleet, provider: Account) -> JobId:
    """A job that is claimed and runs, which the contract is to be told."""
    (job_id,) = scheduled_jobs(fleet.chain, provider, 1)
    claim(fleet.site)
    settled(fleet)
    fleet.site.ledger.record(*(Change(job_id, event) for event in STARTED))
    return job_id


def provider_of(fleet: Fleet) -> Account:
    return Account(fleet.wallet.address, "")


def execute(fleet: Fleet, statement: str) -> None:
    with fleet.engine.begin() as connection:
        connection.execute(text(statement))


def due(fleet: Fleet) -> None:
    """As when the time has passed."""
    execute(fleet, "UPDATE effects SET due_at = now()")


def reported(fleet: Fleet) -> None:
    due(fleet)
    report(fleet.site)
    settled(fleet)


def test_reverted__of_a_job_that_the_contract_does_not_have__holds_up_nobody(chain: Chain, fleet: Fleet) -> None:
    scheduled_jobs(chain, provider_of(fleet), 1)
    lost = JobId("0x" + "ab" * 32)
    end = Write("end", "report", report_call(lost, Report(ChainStatus.FINISHED)), lost, gas=GAS)
    fleet.wallet.send([end, *claims(1)])
    settled(fleet)
    assert fleet.states() == ["REVERTED", "MINED"]


def test_report__reverts_whenever_it_is_mined__is_parked_after_a_few(chain: Chain, fleet: Fleet) -> None:
    job_id = started(fleet, provider_of(fleet))
    code = chain.rpc.call("eth_getCode", chain.addresses.metascheduler, "latest")
    chain.rpc.call("anvil_setCode", chain.addresses.metascheduler, REVERTS_WHEN_PAID_FOR)
    try:
        for _ in range(5):
            reported(fleet)
        assert fleet.states() == ["MINED", *["REVERTED"] * 3]
        assert fleet.alarms() == {AlarmName.EFFECT_PARKED}
        fleet.site.ledger.effects.retry(job_id=job_id)
        for _ in range(3):
            reported(fleet)
        assert fleet.states() == ["MINED", *["REVERTED"] * 4]  # once more, as the operator wished
    finally:
        chain.rpc.call("anvil_setCode", chain.addresses.metascheduler, code)
    fleet.site.ledger.effects.retry(job_id=job_id)
    reported(fleet)
    assert chain.job(job_id).status is ChainStatus.RUNNING


def test_transaction__is_not_mined_for_long__the_operator_is_called_until_it_is(chain: Chain, fleet: Fleet) -> None:
    started(fleet, provider_of(fleet))
    with held(chain):
        report(fleet.site)
        claim(fleet.site)
        due(fleet)
        report(fleet.site)
        assert fleet.alarms() == set()
        execute(fleet, "UPDATE facts SET since = now() - interval '6 minutes'")
        execute(fleet, "UPDATE effects SET due_at = now(), failing_since = failing_since - interval '6 minutes'")
        claim(fleet.site)
        assert fleet.follow()  # which finds nothing to be done
        assert fleet.alarms() == {AlarmName.TRANSACTION_STUCK}
        report(fleet.site)
        watch_effects(fleet.site.ledger)
        assert fleet.alarms() == {AlarmName.TRANSACTION_STUCK, AlarmName.EFFECT_LATE}
    settled(fleet)
    watch_effects(fleet.site.ledger)
    assert fleet.alarms() == set()


def test_certainly_not_mined__signed_very_often__asks_for_all_signatures(chain: Chain, fleet: Fleet) -> None:
    scheduled_jobs(chain, provider_of(fleet), 1)
    fleet.wallet.send(claims(1))
    execute(
        fleet,
        """INSERT INTO signatures (hash, transaction_id, raw, max_fee_wei, priority_fee_wei, head)
        SELECT '0x' || lpad(to_hex(n), 64, '0'), id, raw, 1, 1, 0 FROM transactions, generate_series(1, 150) AS n""",
    )
    (sent,) = fleet.wallet.open_transactions()
    assert len(sent.hashes) == 151
    assert sent.hashes[0] == sent.hash
    assert not fleet.wallet.certainly_not_mined(sent, fleet.wallet.look())


def test_words_of_a_node__that_postgres_cannot_hold__are_kept_all_the_same(chain: Chain, fleet: Fleet) -> None:
    with held(chain):
        fleet.wallet.send(claims(1))
        fleet.wallet.book.broadcast([(fleet.rows("hash")[0][0], HOSTILE)])
        assert fleet.rows("error") == [("no\\x00 \\ud800 at all",)]
    fleet.site.ledger.alarms.on(AlarmName.CHAIN_NOT_ANSWERING, error=HOSTILE, nodes={HOSTILE: [HOSTILE, 7]})
    (alarm,) = fleet.site.ledger.alarms.all()
    assert alarm.details["error"] == "no\\x00 \\ud800 at all"
    settled(fleet)
