"""Transactions that come to nothing: they delay no other, an alarm is raised, and
nothing is paid for without end.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import Engine, text
from structlog.testing import capture_logs

from devgrid.chain.chain import Chain
from devgrid.chain.deployment import start_chain
from devgrid.chain.model import Account, ChainNode, ChainPrices
from devgrid.processes import Processes, wait_until
from devgrid.state_folder import private_processes
from supervisor_tasks.chain.contract import CLAIM, report_call
from supervisor_tasks.chain.rpc.client import RpcUnavailableError
from supervisor_tasks.errors import TransientError
from supervisor_tasks.execution.effect_failures import (
    given_back_on_failure,
    watch_effects,
)
from supervisor_tasks.jobs.claim import claim
from supervisor_tasks.jobs.events import (
    ScriptFetched,
    SlurmCompleted,
    SlurmRunningObserved,
    SubmitStarted,
    Submitted,
)
from supervisor_tasks.jobs.model import (
    ChainStatus,
    EffectKind,
    JobId,
    Outcome,
    SlurmId,
    StatusUpdate,
)
from supervisor_tasks.jobs.report import report
from supervisor_tasks.ledger.alarms import AlarmName
from supervisor_tasks.ledger.facts import TRANSACTION_REQUESTS
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.ledger.operator_actions import request_of_transaction
from supervisor_tasks.wallet.raw_transaction import append_tag
from supervisor_tasks.wallet.transaction_writer import Write
from tests.support.wallet_harness import (
    CUSTOMERS,
    GAS,
    ChainHarness,
    claims,
    databases,
    empty,
    gas_limit,
    held,
    scheduled_jobs,
)

pytestmark = pytest.mark.slow  # transactions that stay pending

REVERTS_WHEN_PAID_FOR = "0x3a600557005b60006000fd"  # an estimate has no gas price
STARTED = (
    ScriptFetched("echo", ""),
    SubmitStarted(10),
    Submitted(SlurmId(7)),
    SlurmRunningObserved(),
)
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
    return start_chain(processes)


@pytest.fixture
def fleet(chain: Chain, database: Engine) -> ChainHarness:
    empty(database)
    account = chain.new_account()
    chain.register_provider(account, [ChainNode(2, 32, 64_000)], ChainPrices())
    return ChainHarness.of(chain, account, database)


def settled(fleet: ChainHarness) -> None:
    wait_until(lambda: not fleet.follow(), "all transactions to be closed", 60.0, 0.05)


def started(fleet: ChainHarness, provider: Account) -> JobId:
    """A job that is claimed and runs, which must be reported to the contract."""
    (job_id,) = scheduled_jobs(fleet.chain, provider, 1)
    claim(fleet.site)
    settled(fleet)
    fleet.site.ledger.record(*(JobChange(job_id, event) for event in STARTED))
    return job_id


def provider_of(fleet: ChainHarness) -> Account:
    return Account(fleet.account.address, "")


def execute(fleet: ChainHarness, statement: str) -> None:
    with fleet.engine.begin() as connection:
        connection.execute(text(statement))


def due(fleet: ChainHarness) -> None:
    """As when the time has passed."""
    execute(fleet, "UPDATE effects SET due_at = now()")


def reported(fleet: ChainHarness) -> None:
    due(fleet)
    report(fleet.site)
    settled(fleet)


def no_answer(fleet: ChainHarness) -> None:
    """As when the node goes away while a batch of reports is written."""
    due(fleet)
    leased = fleet.site.ledger.effects.lease([EffectKind.REPORT])
    if leased:
        with given_back_on_failure(fleet.site.ledger, leased):
            raise TransientError("the node is away")


def test_reverted__job_is_not_on_the_contract__delays_no_other(
    chain: Chain, fleet: ChainHarness
) -> None:
    scheduled_jobs(chain, provider_of(fleet), 1)
    lost = JobId("0x" + "ab" * 32)
    end = Write(
        "end",
        "report",
        report_call(lost, StatusUpdate(ChainStatus.FINISHED)),
        lost,
        gas=GAS,
    )
    fleet.writer.send([end, *claims(1)])
    settled(fleet)
    assert fleet.states() == ["REVERTED", "MINED"]


def test_report__reverts_whenever_it_is_mined__is_parked_after_a_few(
    chain: Chain, fleet: ChainHarness
) -> None:
    job_id = started(fleet, provider_of(fleet))
    code = chain.rpc.call("eth_getCode", chain.addresses.metascheduler, "latest")
    chain.rpc.call(
        "anvil_setCode", chain.addresses.metascheduler, REVERTS_WHEN_PAID_FOR
    )
    try:
        for _ in range(5):
            reported(fleet)
        assert fleet.states() == ["MINED", *["REVERTED"] * 3]
        assert fleet.alarms() == {AlarmName.EFFECT_PARKED}
        fleet.site.ledger.effects.retry(job_id=job_id)
        for _ in range(3):
            reported(fleet)
        # once more, as the operator wished
        assert fleet.states() == ["MINED", *["REVERTED"] * 4]
    finally:
        chain.rpc.call("anvil_setCode", chain.addresses.metascheduler, code)
    fleet.site.ledger.effects.retry(job_id=job_id)
    reported(fleet)
    assert chain.job(job_id).status is ChainStatus.RUNNING


# Code that does what the code at another address does, but for calls with a certain
# word.
BUT_FOR = (
    "7f{word}60{at}3514605e57366000600037"  # to the end, if that word is there
    "6000600036600073{code}5af43d600060003e6059573d6000fd5b3d6000f3"
    "5b{end}"
)
NO_ESTIMATE, REFUSED = "fe", "60006000fd"  # an invalid opcode; a revert without a word
ELSEWHERE = "0x" + "e1" * 20


@contextmanager
def broken_for(chain: Chain, word: str, end: str, at: str = "04") -> Iterator[None]:
    """The contract ends every call with that word at that place (its first argument, if
    not another) in that way, and does what it should for all others.
    """
    address = chain.addresses.metascheduler
    code = chain.rpc.call("eth_getCode", address, "latest")
    chain.rpc.call("anvil_setCode", ELSEWHERE, code)
    broken = BUT_FOR.format(word=word, at=at, code=ELSEWHERE[2:], end=end)
    chain.rpc.call("anvil_setCode", address, "0x" + broken)
    try:
        yield
    finally:
        chain.rpc.call("anvil_setCode", address, code)


@pytest.mark.parametrize(
    "end", ["fe", "605e56"], ids=["invalid opcode", "more gas than a block holds"]
)
def test_report__no_estimate_for_one__waits_alone_and_is_not_parked(
    chain: Chain, fleet: ChainHarness, end: str
) -> None:
    stuck, free = (started(fleet, provider_of(fleet)) for _ in range(2))
    with broken_for(chain, stuck[2:], end):
        for _ in range(5):
            reported(fleet)
        assert chain.job(free).status is ChainStatus.RUNNING
        assert chain.job(stuck).status is ChainStatus.SCHEDULED
        assert fleet.states() == ["MINED"] * 3
        assert fleet.alarms() == set()
        with fleet.engine.connect() as connection:
            of_stuck = text(
                "SELECT last_error, attempts FROM effects WHERE done_at IS NULL AND kind = 'report'"
            )
            ((error, attempts),) = connection.execute(of_stuck)
        assert "gas" in error or "InvalidFEOpcode" in error
        assert attempts >= 5
    reported(fleet)
    assert chain.job(stuck).status is ChainStatus.RUNNING


def test_report__reverts_in_the_dry_run__is_parked_at_the_third_time_despite_others(
    chain: Chain, fleet: ChainHarness
) -> None:
    job_id = started(fleet, provider_of(fleet))
    alarms = list[set[str]]()
    for end in (
        NO_ESTIMATE,
        NO_ESTIMATE,
        NO_ESTIMATE,
        REFUSED,
        REFUSED,
        NO_ESTIMATE,
        REFUSED,
    ):
        with broken_for(chain, job_id[2:], end):
            reported(fleet)
        alarms.append(fleet.alarms())
    assert alarms == [*[set[AlarmName]()] * 6, {AlarmName.EFFECT_PARKED}]
    fleet.site.ledger.effects.retry(job_id=job_id)
    reported(fleet)
    assert chain.job(job_id).status is ChainStatus.RUNNING


def test_report__reverts_with_other_failures_in_between__is_paid_for_no_oftener(
    chain: Chain, fleet: ChainHarness
) -> None:
    started(fleet, provider_of(fleet))
    code = chain.rpc.call("eth_getCode", chain.addresses.metascheduler, "latest")
    try:
        chain.rpc.call(
            "anvil_setCode", chain.addresses.metascheduler, REVERTS_WHEN_PAID_FOR
        )
        for _ in range(5):
            reported(fleet)
            no_answer(fleet)
    finally:
        chain.rpc.call("anvil_setCode", chain.addresses.metascheduler, code)
    assert fleet.states() == ["MINED", *["REVERTED"] * 3]
    assert fleet.alarms() == {AlarmName.EFFECT_PARKED}


def test_claim__no_estimate_for_it__cancellations_are_claimed_all_the_same(
    chain: Chain, fleet: ChainHarness
) -> None:
    running = started(fleet, provider_of(fleet))
    (waiting,) = scheduled_jobs(chain, provider_of(fleet), 1)
    chain.customers.cancel_job(CUSTOMERS[running], running)
    claims_next = append_tag(CLAIM.encode(), fleet.account.transactions.instance_tag())[
        2:
    ].ljust(64, "0")
    with broken_for(chain, claims_next, "fe", at="00"):
        with pytest.raises(RpcUnavailableError, match="gives no estimate"):
            claim(fleet.site)
        settled(fleet)
        assert fleet.site.ledger.jobs([running])[running].cancel_requested
    claim(fleet.site)
    settled(fleet)
    assert waiting in fleet.site.ledger.jobs([waiting])


@pytest.mark.parametrize("ends_by", ["one that passes", "an empty queue"])
def test_claim__refused_at_the_estimate__the_operator_is_called_a_minute_later(
    chain: Chain, fleet: ChainHarness, ends_by: str
) -> None:
    running = started(fleet, provider_of(fleet))
    (waiting,) = scheduled_jobs(chain, provider_of(fleet), 1)
    chain.customers.cancel_job(CUSTOMERS[running], running)
    claims_next = append_tag(CLAIM.encode(), fleet.account.transactions.instance_tag())[
        2:
    ].ljust(64, "0")
    with broken_for(chain, claims_next, REFUSED, at="00"):
        claim(fleet.site)
        settled(fleet)
        assert fleet.site.ledger.jobs([running])[running].cancel_requested
        claim(fleet.site)
        assert fleet.alarms() == set()
        execute(
            fleet,
            "UPDATE facts SET since = since - interval '1 minute' WHERE name LIKE 'condition.estimate_rejected.%'",
        )
        claim(fleet.site)
        (alarm,) = fleet.site.ledger.alarms.all()
        assert (alarm.name, alarm.details["purpose"]) == (
            AlarmName.CLAIMS_REVERTING,
            "claim",
        )
        assert alarm.details["estimated"] is True
        assert "revert" in alarm.details["error"]
        if ends_by == "an empty queue":
            chain.customers.cancel_job(CUSTOMERS[waiting], waiting)
            claim(fleet.site)
            assert fleet.alarms() == set()
            return
    claim(fleet.site)
    assert fleet.alarms() == set()
    settled(fleet)
    assert waiting in fleet.site.ledger.jobs([waiting])


@pytest.mark.parametrize(
    "gas", [9_000_000, 100], ids=["more than a block holds", "less than its data cost"]
)
def test_transaction__all_nodes_refuse_it__its_nonce_is_filled_and_its_key_freed(
    chain: Chain, fleet: ChainHarness, gas: int
) -> None:
    scheduled_jobs(chain, provider_of(fleet), 1)
    with gas_limit(chain, 8_000_000):
        fleet.writer.send([replace(claims(1)[0], idempotency_key="never", gas=gas)])
        fleet.writer.send(claims(1))
        assert fleet.states() == ["SIGNED", "SENT"]
        settled(fleet)
    assert fleet.states() == ["REVERTED", "MINED"]
    assert "no node took it" in fleet.rows("error")[0][0]
    assert fleet.writer.missing(["never"]) == {"never"}
    assert fleet.alarms() == set()


def test_transaction__given_up_and_mined_all_the_same__counts(
    chain: Chain, fleet: ChainHarness
) -> None:
    scheduled_jobs(chain, provider_of(fleet), 1)
    with held(chain):
        fleet.writer.send(claims(1))
        ((raw, first_hash),) = fleet.rows("raw, hash")
        state = fleet.account.fetch_account_state()
        fleet.sent_transactions.cancel_with_replacement(
            fleet.sent_transactions.all(), state.market, state.head
        )
        chain.rpc.call("anvil_dropTransaction", fleet.sent_transactions.all()[0].hash)
        chain.rpc.call("eth_sendRawTransaction", "0x" + bytes(raw).hex())
    settled(fleet)
    assert fleet.rows("state, hash") == [("MINED", first_hash)]


def test_balance__too_low_to_replace_any_transaction__raises_an_alarm(
    chain: Chain, fleet: ChainHarness
) -> None:
    scheduled_jobs(chain, provider_of(fleet), 2)
    with held(chain):
        fleet.writer.send(claims(2))
        most = max(int(fee) for (fee,) in fleet.rows("max_fee_wei"))
        chain.rpc.call("anvil_setBalance", fleet.account.address, hex(GAS * most - 1))
        chain.rpc.call("anvil_setNextBlockBaseFeePerGas", hex(3 * most))
        chain.mine()
        wait_until(
            lambda: fleet.follow() and fleet.alarms() == {AlarmName.WALLET_EMPTY},
            "the alarm",
            60.0,
            0.1,
        )
        assert fleet.signatures() == 2
        chain.rpc.call("anvil_setBalance", fleet.account.address, hex(10**20))
        wait_until(
            lambda: fleet.follow() and fleet.signatures() == 4,
            "what was paid for to be signed again",
            60.0,
            0.1,
        )
    settled(fleet)
    assert fleet.states() == ["MINED", "MINED"]
    claim(fleet.site)
    assert fleet.alarms() == set()
    chain.rpc.call("anvil_setNextBlockBaseFeePerGas", hex(10**9))
    chain.mine()


def test_report__three_jobs_end_and_the_wallet_is_empty__follow_after_a_deposit(
    chain: Chain, fleet: ChainHarness
) -> None:
    job_ids = scheduled_jobs(chain, provider_of(fleet), 3)
    claim(fleet.site)
    settled(fleet)
    ended = SlurmCompleted(Outcome(status=ChainStatus.FINISHED, elapsed_s=125))
    for slurm_id, job_id in enumerate(job_ids, start=1):
        begun = (*STARTED[:2], Submitted(SlurmId(slurm_id)), SlurmRunningObserved())
        fleet.site.ledger.record(
            *(JobChange(job_id, event) for event in (*begun, ended))
        )
    signed = fleet.signatures()
    chain.rpc.call("anvil_setBalance", fleet.account.address, "0x0")
    for _ in range(3):
        due(fleet)
        report(fleet.site)
    assert fleet.signatures() == signed
    assert fleet.alarms() == {AlarmName.WALLET_EMPTY}
    with fleet.engine.connect() as connection:
        parked = "SELECT count(*) FROM effects WHERE parked_at IS NOT NULL"
        assert connection.scalar(text(parked)) == 0
    chain.rpc.call("anvil_setBalance", fleet.account.address, hex(10**20))
    reported(fleet)
    statuses = {chain.job(job_id).status for job_id in job_ids}
    assert statuses == {ChainStatus.FINISHED}


def test_transaction__is_not_mined_for_long__the_operator_is_called_until_it_is(
    chain: Chain, fleet: ChainHarness
) -> None:
    started(fleet, provider_of(fleet))
    with held(chain):
        report(fleet.site)
        claim(fleet.site)
        due(fleet)
        report(fleet.site)
        assert fleet.alarms() == set()
        execute(fleet, "UPDATE facts SET since = now() - interval '6 minutes'")
        execute(
            fleet,
            "UPDATE effects SET due_at = now(), failing_since = failing_since - interval '6 minutes'",
        )
        claim(fleet.site)
        assert fleet.follow()  # which finds nothing to be done
        assert fleet.alarms() == {AlarmName.TRANSACTION_STUCK}
        report(fleet.site)
        watch_effects(fleet.site.ledger)
        assert fleet.alarms() == {AlarmName.TRANSACTION_STUCK, AlarmName.EFFECT_OVERDUE}
    settled(fleet)
    watch_effects(fleet.site.ledger)
    assert fleet.alarms() == set()


def test_is_confirmed_unmined__signed_very_often__asks_for_all_signatures(
    chain: Chain, fleet: ChainHarness
) -> None:
    scheduled_jobs(chain, provider_of(fleet), 1)
    fleet.writer.send(claims(1))
    execute(
        fleet,
        """INSERT INTO signatures (hash, transaction_id, raw, max_fee_wei, priority_fee_wei, head)
        SELECT '0x' || lpad(to_hex(n), 64, '0'), id, raw, 1, 1, 0 FROM transactions, generate_series(1, 150) AS n""",
    )
    (sent,) = fleet.sent_transactions.all()
    assert len(sent.hashes) == 151
    assert sent.hashes[0] == sent.hash
    assert not fleet.sent_transactions.is_confirmed_unmined(
        sent, fleet.account.fetch_account_state()
    )


def test_words_of_a_node__that_postgres_cannot_hold__are_kept_all_the_same(
    chain: Chain, fleet: ChainHarness
) -> None:
    with held(chain):
        fleet.writer.send(claims(1))
        fleet.account.transactions.broadcast([(fleet.rows("hash")[0][0], HOSTILE)])
        assert fleet.rows("error") == [("no\\x00 \\ud800 at all",)]
    fleet.site.ledger.alarms.on(
        AlarmName.CHAIN_NOT_ANSWERING, error=HOSTILE, nodes={HOSTILE: [HOSTILE, 7]}
    )
    (alarm,) = fleet.site.ledger.alarms.all()
    assert alarm.details["error"] == "no\\x00 \\ud800 at all"
    settled(fleet)


# --- what an operator asks for --------------------------------------------------------


def open_one(fleet: ChainHarness) -> int:
    """A claim that waits to be mined; its id."""
    fleet.writer.send(claims(1))
    ((row_id,),) = fleet.rows("id")
    assert isinstance(row_id, int)
    return row_id


def test_bump__asked_for__signs_the_same_call_for_a_higher_fee_once(
    chain: Chain, fleet: ChainHarness
) -> None:
    scheduled_jobs(chain, provider_of(fleet), 1)
    with held(chain):
        row_id = open_one(fleet)
        ((before_wei,),) = fleet.rows("max_fee_wei")
        fleet.follow()
        assert fleet.signatures() == 1
        request_of_transaction(fleet.site.ledger, row_id, "bump")
        fleet.follow()
        fleet.follow()
        ((after_wei,),) = fleet.rows("max_fee_wei")
        assert (fleet.signatures(), after_wei > before_wei) == (2, True)
        assert fleet.site.ledger.facts.get(TRANSACTION_REQUESTS) is None
    settled(fleet)
    assert fleet.states() == ["MINED"]


def test_request__of_another_release__is_logged_and_holds_up_no_other(
    chain: Chain, fleet: ChainHarness
) -> None:
    scheduled_jobs(chain, provider_of(fleet), 2)
    with held(chain):
        fleet.writer.send(claims(2))
        (first,), (second,) = fleet.rows("id")
        request_of_transaction(fleet.site.ledger, first, "of_another_release")
        request_of_transaction(fleet.site.ledger, second, "bump")
        signatures = fleet.signatures()
        with capture_logs() as logs:
            fleet.follow()
        assert fleet.signatures() == signatures + 1
        (line,) = [
            each for each in logs if each["event"] == "transaction_request_unknown"
        ]
        assert (line["transaction"], line["request"]) == (
            str(first),
            "of_another_release",
        )
        assert fleet.site.ledger.facts.get(TRANSACTION_REQUESTS) is None
    settled(fleet)


def test_bump__at_the_bound__is_told_and_not_signed(
    chain: Chain, database: Engine
) -> None:
    empty(database)
    account = chain.new_account()
    chain.register_provider(account, [ChainNode(2, 32, 64_000)], ChainPrices())
    fleet = ChainHarness.of(chain, account, database, cap_wei=2 * 10**9)
    scheduled_jobs(chain, provider_of(fleet), 1)
    with held(chain):
        row_id = open_one(fleet)
        for _ in range(20):  # each adds an eighth, from one gwei at least
            request_of_transaction(fleet.site.ledger, row_id, "bump")
            fleet.follow()
        ((fee_wei,),) = fleet.rows("max_fee_wei")
        assert fee_wei == 2 * 10**9
        assert AlarmName.TRANSACTION_STUCK in fleet.alarms()
    settled(fleet)


def test_cancel__requested__an_empty_transaction_is_mined_and_the_key_freed(
    chain: Chain, fleet: ChainHarness
) -> None:
    scheduled_jobs(chain, provider_of(fleet), 1)
    with held(chain):
        row_id = open_one(fleet)
        request_of_transaction(fleet.site.ledger, row_id, "cancel")
        fleet.follow()
        assert fleet.signatures() == 2
    settled(fleet)
    assert fleet.states() == ["REVERTED"]
    assert fleet.writer.missing(["claim:0"]) == {"claim:0"}
    fleet.writer.send(claims(1))
    settled(fleet)
    assert fleet.states() == ["REVERTED", "MINED"]
