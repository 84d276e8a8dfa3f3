"""A false RPC node tries to fill the worker's memory, redirect it, make it overpay,
have it begin invented jobs, or have it end its customers' jobs.
"""

import gzip
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
import requests
from sqlalchemy import Engine

from devgrid import REPOSITORY
from devgrid.chain.chain import Chain, random_account
from devgrid.chain.model import Account
from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.abi_codec import function
from supervisor_tasks.chain.contract import (
    ABI_SLOT_DIGITS,
    CLAIM,
    CLAIMED,
    TRANSITION,
    report_call,
)
from supervisor_tasks.chain.rpc import failover
from supervisor_tasks.chain.rpc.client import Rpc, RpcUnavailableError
from supervisor_tasks.chain.rpc.endpoint_health import PATIENCE_S, Health
from supervisor_tasks.chain.rpc.failover import Endpoints
from supervisor_tasks.chain.rpc.unanswered import BUSY_COUNTS_LESS, COUNTED_S
from supervisor_tasks.chain_events import cross_check
from supervisor_tasks.chain_events.cross_check import (
    unconfirmed_statuses,
    unconfirmed_transactions,
)
from supervisor_tasks.context import ReconciliationServices
from supervisor_tasks.indexer.scan import scan
from supervisor_tasks.jobs.claim import claim
from supervisor_tasks.jobs.model import ChainStatus, Job, JobId, State, StatusUpdate
from supervisor_tasks.jobs.report import report
from supervisor_tasks.ledger.cursor_names import CONTRACT_STREAM
from supervisor_tasks.ledger.transaction_names import report_purpose
from supervisor_tasks.monitoring import chain_alarms
from supervisor_tasks.reconciliation.contract_claims import look_at_contract
from supervisor_tasks.reconciliation.recording import record_discrepancies
from supervisor_tasks.reconciliation.rules import find_discrepancies
from supervisor_tasks.reconciliation.snapshot import (
    DiscrepancyKind,
    Snapshot,
    doubt_key,
)
from supervisor_tasks.reconciliation.sweep_report import ReconciliationReport
from supervisor_tasks.slurm.squeue import SqueueRow
from supervisor_tasks.wallet import nonces
from supervisor_tasks.wallet.raw_transaction import FILLER_GAS
from supervisor_tasks.wallet.transaction_writer import TooDearError, Write
from tests.support.http_servers import Quiet, http_server
from tests.support.ledger import let_time_pass
from tests.support.rpc_proxies import Call, node_proxy, real_answers, rejecting_node
from tests.support.running_claims import due, started
from tests.support.snapshots import OUR_COMMENT, row
from tests.support.wallet_harness import (
    GAS,
    ChainHarness,
    claims,
    dearer,
    held,
    registered,
    scheduled_jobs,
    wait_for_receipts,
)

MIB = 2**20
GWEI = 10**9
MAX_WEI = 2 * 10**16
MADE_UP = "0x" + "de" * 32
LYING_GAS = 30_000_000
LYING_PRICE_WEI = 900 * GWEI


# --- answers that do not fit the request ----------------------------------------------


@contextmanager
def node(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """A server that answers each POST in this way."""

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer(self)

    with http_server(Handler) as url:
        yield url


ASK = """
import resource, sys
from supervisor_tasks.chain.rpc.client import Rpc, RpcUnavailableError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    Rpc.at(sys.argv[1]).call("eth_blockNumber")
except RpcUnavailableError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_answer__compressed_to_a_thousandth__is_refused_before_it_is_unpacked() -> None:
    # 600 MiB, in as many parts as gzip allows
    bomb = gzip.compress(bytes(8 * MIB)) * 75
    asked = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        asked.append(request.headers["Accept-Encoding"])
        request.send_response(200)
        request.send_header("Content-Encoding", "gzip")
        request.send_header("Content-Length", str(len(bomb)))
        request.end_headers()
        request.wfile.write(bomb)

    with node(answer) as url:
        done = subprocess.run(
            [sys.executable, "-c", ASK, url],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
        )
    said, grown_kib = done.stdout.splitlines()
    assert "compressed" in said, done.stderr
    assert int(grown_kib) < 32 * 1024
    assert asked == ["identity"]


def test_answer__that_leads_elsewhere__is_not_followed() -> None:
    reached = []
    with ExitStack() as stack:
        inside = stack.enter_context(node(lambda request: reached.append(request.path)))

        def answer(request: BaseHTTPRequestHandler) -> None:
            request.send_response(307)
            request.send_header("Location", f"{inside}/latest/meta-data")
            request.send_header("Content-Length", "0")
            request.end_headers()

        url = stack.enter_context(node(answer))
        with pytest.raises(RpcUnavailableError, match="leads elsewhere"):
            Rpc.at(url, 2.0).call("eth_blockNumber")
    assert reached == []


# --- prices ---------------------------------------------------------------------------


def dear(chain: Chain, **more: str) -> dict[str, Any]:
    """The answers of a node that wants to make transactions dear."""
    block = chain.rpc.call("eth_getBlockByNumber", "latest", False)
    return {
        "eth_estimateGas": hex(LYING_GAS),
        "eth_getBlockByNumber": {**block, "gasLimit": hex(10**9)},
        "eth_maxPriorityFeePerGas": hex(LYING_PRICE_WEI),
        "eth_gasPrice": hex(LYING_PRICE_WEI),
    }


def costs_wei(harness: ChainHarness) -> list[int]:
    """The most that each signature in the ledger can cost, in wei."""
    return [
        entry.gas * entry.fees.max_fee_wei for entry in harness.sent_transactions.all()
    ]


def test_prices__a_node_says_what_it_likes__no_transaction_costs_more_than_the_bound(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    scheduled_jobs(chain, provider, 1)
    with rejecting_node(chain, lambda _: None, dear(chain)) as url, held(chain):
        harness = ChainHarness.of(
            chain, provider, empty_database, Rpc.at(url), most_wei_per_tx=MAX_WEI
        )
        (gas,) = harness.writer.estimate([Write("", "claim", CLAIM.encode())])
        assert isinstance(gas, int)
        assert gas >= LYING_GAS
        harness.writer.send([Write("claim:1", "claim", CLAIM.encode(), gas=gas)])
        assert 0 < max(costs_wei(harness)) <= MAX_WEI
        for _ in range(5):  # and so do its replacements
            state = harness.account.fetch_account_state()
            (entry,) = harness.sent_transactions.all()
            more = dearer(harness.account, entry, state.market)
            harness.sent_transactions.replace([(entry, more)], state.head)
            assert max(costs_wei(harness)) <= MAX_WEI


def test_cancel__of_a_transaction_with_little_gas__costs_no_more_than_the_bound(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    """A node says that a call takes no gas, names a high price, and refuses the call:
    what takes its nonce has more gas.
    """
    with rejecting_node(chain, lambda _: None, dear(chain)) as url, held(chain):
        harness = ChainHarness.of(
            chain, provider, empty_database, Rpc.at(url), most_wei_per_tx=10**15
        )
        harness.writer.send([Write("claim:1", "claim", CLAIM.encode(), gas=1)])
        entries = harness.sent_transactions.all()
        assert entries[0].fees.max_fee_wei * FILLER_GAS > 10**15
        state = harness.account.fetch_account_state()
        harness.sent_transactions.cancel_with_replacement(
            entries, state.market, state.head
        )
        (entry,) = harness.sent_transactions.all()
        assert entry.gas == FILLER_GAS
        assert max(costs_wei(harness)) <= 10**15


def test_send__one_costs_more_than_the_bound__is_not_signed_and_the_others_are_sent(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    """A transaction that is never mined would hold up all later ones."""
    block = chain.rpc.call("eth_getBlockByNumber", "latest", False)
    said = {"eth_getBlockByNumber": {**block, "baseFeePerGas": hex(GWEI)}}
    with rejecting_node(chain, lambda _: None, said) as url, held(chain):
        harness = ChainHarness.of(
            chain, provider, empty_database, Rpc.at(url), most_wei_per_tx=MAX_WEI
        )
        large = Write("claim:large", "claim", CLAIM.encode(), gas=LYING_GAS)
        with pytest.raises(TooDearError, match="WALLET_MAX_WEI_PER_TX"):
            harness.writer.send([large, *claims(2)])
        assert AlarmName.TRANSACTION_TOO_DEAR in harness.alarms()
        assert sorted(key for (key,) in harness.rows("idempotency_key")) == [
            "claim:0",
            "claim:1",
        ]


def test_prices__of_an_honest_node__are_paid(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    jobs = scheduled_jobs(chain, provider, 2)
    harness = ChainHarness.of(chain, provider, empty_database)
    claim(harness.site)
    wait_until(lambda: not harness.follow(), "the claims to be mined", 20.0)
    assert set(harness.site.ledger.jobs(jobs)) == set(jobs)


# --- nonces that are none -------------------------------------------------------------


@contextmanager
def node_with_nonces_ahead(chain: Chain, nonces: int) -> Iterator[str]:
    """A node that reports so many transactions more than are mined."""

    def answer(calls: list[Call]) -> tuple[int, Any]:
        counted = {
            call["id"] for call in calls if call["method"] == "eth_getTransactionCount"
        }
        answers = real_answers(chain, calls)
        for entry in answers:
            if entry["id"] in counted:
                entry["result"] = hex(int(entry["result"], 16) + nonces)
        return 200, answers

    with node_proxy(chain, answer) as (_, url):
        yield url


@pytest.mark.parametrize("signed_before", [True, False], ids=["known", "new ledger"])
def test_nonce__false_at_one_endpoint__is_not_signed_behind(
    chain: Chain, empty_database: Engine, provider: Account, signed_before: bool
) -> None:
    jobs = scheduled_jobs(chain, provider, 2)
    if signed_before:
        honest = ChainHarness.of(chain, provider, empty_database)
        honest.writer.send(claims(1))
        wait_until(lambda: not honest.follow(), "the claim to be mined", 20.0)
    with node_with_nonces_ahead(chain, 1_000_000) as liar:
        rpc = Endpoints([liar, chain.rpc_url], chain.chain_id)
        harness = ChainHarness.of(chain, provider, empty_database, rpc)
        harness.writer.send(claims(2)[1:])
    (nonce,) = [nonce for (nonce,) in harness.rows("nonce")][signed_before:]
    honest = ChainHarness.of(chain, provider, empty_database)
    wait_until(lambda: not honest.follow(), "the claim to be mined", 20.0)
    assert honest.account.fetch_account_state().mined_nonces == nonce + 1
    assert len(known_jobs(honest)) == 1 + signed_before
    assert known_jobs(honest) <= set(jobs)
    assert AlarmName.UNKNOWN_TRANSACTION_ON_ACCOUNT not in honest.alarms()


def test_nonce__only_one_endpoint_answers__is_believed_after_a_while(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    """The key was used before, and the ledger is new."""
    scheduled_jobs(chain, provider, 1)
    clock = Clock()
    away = f"http://127.0.0.1:{free_port()}"
    rpc = Endpoints([chain.rpc_url, away], chain.chain_id, clock)
    harness = ChainHarness.of(chain, provider, empty_database, rpc)
    for _ in range(4):  # time in which no endpoint was asked does not count
        with pytest.raises(RpcUnavailableError, match="expected a second endpoint"):
            harness.writer.send(claims(1))
        assert harness.rows("nonce") == []
        clock.now_s += PATIENCE_S / 3
    harness.writer.send(claims(1))
    wait_for_receipts(harness)
    assert len(harness.rows("nonce")) == 1


# --- jobs that are none ---------------------------------------------------------------


Forge = Callable[[str], str]


@contextmanager
def forging(chain: Chain, forge: Forge) -> Iterator[tuple[threading.Event, str]]:
    """A node that gives true answers until the event is set, and then rewrites all logs
    and receipts consistently.
    """
    is_forging = threading.Event()

    def answer(calls: list[Call]) -> tuple[int, Any] | None:
        if not is_forging.is_set():
            return None
        real_calls = [
            {**call, "params": json.loads(_back(json.dumps(call["params"])))}
            if "Transaction" in call["method"]
            else call
            for call in calls
        ]
        answers = {entry["id"]: entry for entry in real_answers(chain, real_calls)}
        rewritten = (
            "eth_getLogs",
            "eth_getTransactionReceipt",
            "eth_getTransactionByHash",
        )
        for call in calls:
            if call["method"] in rewritten:
                answers[call["id"]] = json.loads(forge(json.dumps(answers[call["id"]])))
        return 200, list(answers.values())

    def _back(text: str) -> str:
        if not REAL:
            return text
        quoted = f'"{REAL[0]}"'
        return text.replace(MADE_UP, REAL[0]).replace(f'"{SHORT}"', quoted)

    with node_proxy(chain, answer) as (_, url):
        yield is_forging, url


BUSY = {"code": -32005, "message": "too many requests"}
TOO_LARGE = {"code": -32003, "message": "response too large"}  # geth's
SHORT = "0x12"  # no node looks up a hash of one byte
REAL: list[str] = []  # the hash of the transaction that a made-up one stands for


def claim_by_another(chain: Chain, is_forging: threading.Event) -> Account:
    """Another provider claims a job. The forging node shows the claim as ours."""
    other = registered(chain)
    scheduled_jobs(chain, other, 1)
    is_forging.set()
    receipt = chain.send(other, "MetaScheduler", "claimNextJob")
    REAL[:] = [receipt["transactionHash"]]
    return other


def replaced(others: Mapping[str, str], text: str) -> str:
    """The text with other words in place of some."""
    for theirs, ours in others.items():
        text = text.replace(theirs, ours)
    return text


@contextmanager
def fleet_with_forging_node(
    chain: Chain,
    engine: Engine,
    provider: Account,
    second: str,
    rewrite: Forge,
    now_s: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[ChainHarness, threading.Event]]:
    with forging(chain, rewrite) as (is_forging, url):
        rpc = Endpoints([url, second], chain.chain_id, now_s)
        harness = ChainHarness.of(chain, provider, engine, rpc)
        scan(harness.site)  # from here on
        yield harness, is_forging


def known_jobs(harness: ChainHarness) -> set[str]:
    with harness.engine.connect() as connection:
        return {row[0] for row in connection.exec_driver_sql("SELECT job_id FROM jobs")}


@pytest.mark.parametrize(
    "invented",
    [False, True],
    ids=["another providers job", "a claim that never happened"],
)
def test_claim__forged_by_one_endpoint__no_job_is_begun_and_the_operator_is_called(
    chain: Chain,
    empty_database: Engine,
    provider: Account,
    invented: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cross_check, "DISAGREE_S", 0.0)
    others = dict[str, str]()
    rewrite = partial(replaced, others)
    with fleet_with_forging_node(
        chain, empty_database, provider, chain.rpc_url, rewrite
    ) as (
        harness,
        is_forging,
    ):

        def is_noticed() -> bool:
            """Forge a claim. If the other node answers first, the scan never sees it."""
            others.clear()
            other = claim_by_another(chain, is_forging)
            others[other.address[2:].lower()] = provider.address[2:].lower()
            if invented:
                others[REAL[0]] = MADE_UP
            for _ in range(3):
                scan(harness.site)
            assert known_jobs(harness) == set()
            return AlarmName.ENDPOINTS_DISAGREE in harness.alarms()

        wait_until(is_noticed, "the alarm", 60.0)
        is_forging.clear()
        scan(harness.site)
        assert known_jobs(harness) == set()
        # "seen" is in whole seconds
        monkeypatch.setitem(chain_alarms.QUIET_S, AlarmName.ENDPOINTS_DISAGREE, -1.0)
        (ours,) = scheduled_jobs(chain, provider, 1)
        claim(harness.site)
        wait_until(lambda: not harness.follow(), "the claim to be mined", 20.0)
        assert known_jobs(harness) == {ours}
        assert AlarmName.ENDPOINTS_DISAGREE not in harness.alarms()


def test_claim__forged_under_a_hash_that_no_node_looks_up__no_job_is_begun(
    chain: Chain,
    empty_database: Engine,
    provider: Account,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The honest endpoint rejects the question about a hash of one byte, so it denies
    nothing, and would count as away.
    """
    monkeypatch.setattr(cross_check, "PATIENCE_S", -1.0)
    others = dict[str, str]()
    rewrite = partial(replaced, others)
    with fleet_with_forging_node(
        chain, empty_database, provider, chain.rpc_url, rewrite
    ) as (
        harness,
        is_forging,
    ):
        other = claim_by_another(chain, is_forging)
        others[other.address[2:].lower()] = provider.address[2:].lower()
        others[REAL[0]] = SHORT
        for _ in range(3):
            with suppress(RpcUnavailableError):
                scan(harness.site)
        assert known_jobs(harness) == set()
        is_forging.clear()
        (ours,) = scheduled_jobs(chain, provider, 1)

        def is_claimed() -> bool:
            with suppress(RpcUnavailableError):  # the liar is asked again after a pause
                claim(harness.site)
                harness.follow()
            return known_jobs(harness) == {ours}

        wait_until(is_claimed, "our own job to be claimed", 60.0)


def test_claim__forged_in_the_receipt_of_our_own_transaction__no_job_is_begun(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    """The forging node names a job that the contract never gave."""
    (job_id,) = scheduled_jobs(chain, provider, 1)
    with fleet_with_forging_node(
        chain,
        empty_database,
        provider,
        chain.rpc_url,
        lambda text: text.replace(job_id[2:], MADE_UP[2:]),
    ) as (
        harness,
        is_forging,
    ):
        REAL.clear()
        is_forging.set()
        claim(harness.site)
        for _ in range(5):
            assert harness.follow()
        assert known_jobs(harness) == set()
        assert harness.states() == ["SENT"]
        is_forging.clear()
        wait_until(lambda: not harness.follow(), "the claim to be read", 20.0)
        assert known_jobs(harness) == {job_id}
        assert harness.signatures() == 1


def test_claim__forged_under_another_transaction_in_our_receipt__no_job_is_begun(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    """The log names another transaction than its receipt: the second endpoint would be
    asked about that one.
    """
    (job_id,) = scheduled_jobs(chain, provider, 1)

    def rewrite(text: str) -> str:
        answer = json.loads(text)
        result = answer.get("result")
        for entry in result["logs"] if isinstance(result, dict) else ():
            entry["transactionHash"] = MADE_UP
        return json.dumps(answer).replace(job_id[2:], MADE_UP[2:])

    with fleet_with_forging_node(
        chain, empty_database, provider, chain.rpc_url, rewrite
    ) as (
        harness,
        is_forging,
    ):
        REAL.clear()
        is_forging.set()
        claim(harness.site)
        for _ in range(5):
            assert harness.follow()
        assert known_jobs(harness) == set()
        is_forging.clear()
        wait_until(lambda: not harness.follow(), "the claim to be read", 20.0)
        assert known_jobs(harness) == {job_id}


def test_claim__forged_in_the_second_answer_only__no_job_is_begun(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    """A first forgery has the earlier blocks read again; the second one is in these."""
    other, ours = registered(chain), provider.address[2:].lower()
    scheduled_jobs(chain, other, 2)
    later = list[str]()

    def rewrite(text: str) -> str:
        entries = json.loads(text)
        logs = entries.get("result")
        if not isinstance(logs, list):
            return text.replace(other.address[2:].lower(), ours)
        is_first = any(entry["transactionHash"] in later for entry in logs)
        for place, entry in enumerate(logs):
            if not is_first or entry["transactionHash"] in later:
                forged = json.dumps(entry).replace(other.address[2:].lower(), ours)
                logs[place] = json.loads(forged)
        return json.dumps(entries)

    with fleet_with_forging_node(
        chain, empty_database, provider, chain.rpc_url, rewrite
    ) as (
        harness,
        is_forging,
    ):
        REAL.clear()
        chain.send(other, "MetaScheduler", "claimNextJob")
        last = chain.send(other, "MetaScheduler", "claimNextJob")
        later.append(last["transactionHash"])
        is_forging.set()
        for _ in range(3):
            scan(harness.site)
        assert known_jobs(harness) == set()
        is_forging.clear()
        scan(harness.site)
        assert known_jobs(harness) == set()


def test_claim__liar_refuses_receipts_and_the_other_denies_it__is_not_believed(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    """Alone for longer than the patience, the one that answers counts: it denies it."""
    clock, refusing = Clock(), threading.Event()
    others = dict[str, str]()

    def rewrite(text: str) -> str:
        for theirs, ours in others.items():
            text = text.replace(theirs, ours)
        answer = json.loads(text)
        if isinstance(answer.get("result"), dict) and refusing.is_set():
            return json.dumps({"jsonrpc": "2.0", "id": answer["id"], "error": BUSY})
        return text

    with fleet_with_forging_node(
        chain, empty_database, provider, chain.rpc_url, rewrite, clock
    ) as (
        harness,
        is_forging,
    ):
        other = claim_by_another(chain, is_forging)
        others[other.address[2:].lower()] = provider.address[2:].lower()
        refusing.set()
        for _ in range(6):
            scan(harness.site)
            clock.now_s += 10.0
        assert known_jobs(harness) == set()


def test_claim__second_endpoint_is_behind__waits_for_it(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    behind = threading.Event()

    def answer(calls: list[Call]) -> tuple[int, Any] | None:
        if not behind.is_set():
            return None
        said = {entry["id"]: entry for entry in real_answers(chain, calls)}
        for call in calls:
            if call["method"] == "eth_getTransactionReceipt":
                said[call["id"]]["result"] = None
        return 200, list(said.values())

    (job_id,) = scheduled_jobs(chain, provider, 1)
    with node_proxy(chain, answer) as (asked, second):
        harness = ChainHarness.of(
            chain,
            provider,
            empty_database,
            Endpoints([chain.rpc_url, second], chain.chain_id),
        )
        behind.set()
        harness.site.ledger.alarms.on(AlarmName.EVENTS_FROM_ONE_ENDPOINT)
        claim(harness.site)
        assert harness.follow()
        assert known_jobs(harness) == set()
        assert AlarmName.EVENTS_FROM_ONE_ENDPOINT in harness.alarms()
        behind.clear()
        wait_until(lambda: not harness.follow(), "the claim to be confirmed", 20.0)
        assert known_jobs(harness) == {job_id}
        assert AlarmName.EVENTS_FROM_ONE_ENDPOINT not in harness.alarms()
        # one question for a pass, for any number of jobs
        assert asked.count("eth_getTransactionReceipt") <= 3


class Clock:
    """A clock that a test sets forward by an hour."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_claim__second_endpoint_fails_twice_in_an_hour__forged_claim_is_not_believed(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    failing, clock, others = threading.Event(), Clock(), dict[str, str]()

    def answer(calls: list[Call]) -> tuple[int, Any] | None:
        return (503, "") if failing.is_set() else None

    rewrite = partial(replaced, others)
    with (
        node_proxy(chain, answer) as (_, honest),
        fleet_with_forging_node(
            chain, empty_database, provider, honest, rewrite, clock
        ) as (harness, is_forging),
    ):
        others[claim_by_another(chain, is_forging).address[2:].lower()] = (
            provider.address[2:].lower()
        )
        failing.set()
        scan(harness.site)
        clock.now_s += 3600.0
        scan(harness.site)
        assert known_jobs(harness) == set()
        for _ in range(4):
            clock.now_s += 10.0
            scan(harness.site)
        # it was away all the time, and one endpoint alone is believed
        assert len(known_jobs(harness)) == 1
        assert AlarmName.EVENTS_FROM_ONE_ENDPOINT in harness.alarms()


@pytest.mark.parametrize(
    ("answer", "together"),
    [
        ((429, ""), False),
        ((200, BUSY), False),
        ((200, BUSY), True),
        ((200, TOO_LARGE), False),
        ((503, ""), False),
    ],
    ids=[
        "rate limit of HTTP",
        "rate limit of JSON-RPC",
        "rate limit for all calls",
        "receipts too large together",
        "receipts not in time",
    ],
)
def test_claim__forged_so_that_the_honest_endpoint_cannot_answer__no_job_is_begun(
    chain: Chain,
    empty_database: Engine,
    provider: Account,
    monkeypatch: pytest.MonkeyPatch,
    answer: tuple[int, Any],
    together: bool,
) -> None:
    """The honest endpoint rejects the questions about receipts, because of their number
    or of what they ask for, and answers all others.
    """
    monkeypatch.setattr(failover, "LOOK_AGAIN_S", 0.0)
    clock = Clock()
    scheduled_jobs(chain, provider, 1)
    receipt = chain.send(provider, "MetaScheduler", "claimNextJob")
    claim_hash = receipt["transactionHash"]

    def answer_honestly(calls: list[Call]) -> tuple[int, Any] | None:
        if not any(call["method"] == "eth_getTransactionReceipt" for call in calls):
            return None
        status, error = answer
        refusals = [
            {"jsonrpc": "2.0", "id": call["id"], "error": error} for call in calls
        ]
        return status, refusals[0] if together else refusals

    with node_proxy(chain, answer_honestly) as (asked, honest):
        rpc = Endpoints([chain.rpc_url, honest], chain.chain_id, clock)
        harness = ChainHarness.of(chain, provider, empty_database, rpc)
        contract = harness.site.chain.contract
        events, _ = contract.decode_events(receipt["logs"])

        def are_alive() -> bool:
            rpc.call("eth_blockNumber")  # which has the other one looked at
            return set(rpc.health().values()) == {Health.ALIVE}

        def is_doubted() -> bool:
            ledger = harness.site.ledger
            found = unconfirmed_transactions(ledger, contract, events, by="test")
            return found == {claim_hash}

        while clock.now_s < 4 * PATIENCE_S:
            assert is_doubted()
            wait_until(are_alive, "both endpoints to be alive", 30.0, 0.01)
            clock.now_s += 5.0
        assert "eth_getTransactionReceipt" in asked
        assert AlarmName.EVENTS_FROM_ONE_ENDPOINT not in harness.alarms()
        # an endpoint that could not answer for minutes holds up the jobs no longer
        clock.now_s += 5.0
        while is_doubted() and clock.now_s < 10 * PATIENCE_S * BUSY_COUNTS_LESS:
            clock.now_s += 5.0
        waited_s = PATIENCE_S * BUSY_COUNTS_LESS
        assert waited_s < clock.now_s < waited_s + 10 * COUNTED_S
        assert AlarmName.EVENTS_FROM_ONE_ENDPOINT in harness.alarms()


# --- ends that are none ---------------------------------------------------------------


def claimed_job(harness: ChainHarness, provider: Account) -> JobId:
    """A job of ours that the ledger has."""
    (job_id,) = scheduled_jobs(harness.chain, provider, 1)
    claim(harness.site)
    wait_until(lambda: not harness.follow(), "the claim to be read", 20.0)
    scan(harness.site)
    return job_id


def claimed_by_another(chain: Chain) -> tuple[Account, JobId]:
    """Another provider, and a job that it has claimed."""
    other = registered(chain)
    (job_id,) = scheduled_jobs(chain, other, 1)
    chain.send(other, "MetaScheduler", "claimNextJob")
    return other, job_id


def end_on_chain(chain: Chain, owner: Account, job_id: JobId, how: str) -> None:
    """Have the job's provider cancel it, or give it back."""
    raw = bytes.fromhex(job_id[2:])
    if how == "given back":
        chain.send(owner, "MetaScheduler", "refuseJob", raw)
    else:
        report = (raw, int(ChainStatus.CANCELLED), 0, "", 0)
        chain.send(owner, "MetaScheduler", "providerSetJobStatus", *report)


def job_of(harness: ChainHarness, job_id: JobId) -> Job:
    return harness.site.ledger.jobs([job_id])[job_id]


def transition(job_id: JobId, before: ChainStatus, after: ChainStatus) -> str:
    """The data of the log of a transition."""
    return f"{job_id}{before:064x}{after:064x}"


ENDS = {"ended": State.SETTLED, "given back": State.REFUSED}


@pytest.mark.parametrize("how", ENDS)
def test_end__forged_by_one_endpoint__the_job_goes_on_and_the_operator_is_called(
    chain: Chain,
    empty_database: Engine,
    provider: Account,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another provider's job ends, and the forging node names ours instead."""
    monkeypatch.setattr(cross_check, "DISAGREE_S", 0.0)
    others = dict[str, str]()
    with fleet_with_forging_node(
        chain, empty_database, provider, chain.rpc_url, partial(replaced, others)
    ) as (harness, is_forging):
        ours = claimed_job(harness, provider)
        scan(harness.site)
        before = job_of(harness, ours)

        def is_noticed() -> bool:
            """Forge an end. If the other node answers first, the scan never sees it."""
            is_forging.clear()
            other, theirs = claimed_by_another(chain)
            scan(harness.site)
            REAL.clear()
            others[theirs[2:]] = ours[2:]
            end_on_chain(chain, other, theirs, how)
            is_forging.set()
            for _ in range(3):
                scan(harness.site)
            assert job_of(harness, ours) == before
            return AlarmName.ENDPOINTS_DISAGREE in harness.alarms()

        wait_until(is_noticed, "the alarm", 60.0)
        is_forging.clear()
        end_on_chain(chain, provider, ours, how)
        scan(harness.site)
        assert job_of(harness, ours).state is ENDS[how]


def test_end__forged_in_the_receipt_of_our_own_report__the_job_goes_on(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    """We report that the job runs; the forging node shows that this cancels it."""
    forged = {
        transition(JobId("0x"), ChainStatus.SCHEDULED, ChainStatus.RUNNING): transition(
            JobId("0x"), ChainStatus.SCHEDULED, ChainStatus.CANCELLED
        )
    }
    forged = {theirs[2:]: ours[2:] for theirs, ours in forged.items()}
    with fleet_with_forging_node(
        chain, empty_database, provider, chain.rpc_url, partial(replaced, forged)
    ) as (harness, is_forging):
        ours = claimed_job(harness, provider)
        REAL.clear()
        is_forging.set()
        harness.writer.send([status_write(ours, ChainStatus.RUNNING)])
        wait_for_receipts(harness)
        for _ in range(3):
            assert harness.follow()
        assert job_of(harness, ours).state is State.CLAIMED
        is_forging.clear()
        wait_until(lambda: not harness.follow(), "the report to be read", 20.0)
        assert job_of(harness, ours).chain_status is ChainStatus.RUNNING


def status_write(job_id: JobId, status: ChainStatus) -> Write:
    """The transaction by which the supervisor reports this status."""
    data = report_call(job_id, StatusUpdate(status))
    return Write(status.name, report_purpose(status), data, job_id, gas=GAS)


def test_end__by_our_own_report_or_of_anothers_job__the_second_endpoint_is_not_asked(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    with node_proxy(chain, lambda _: None) as (asked, second):
        rpc = Endpoints([chain.rpc_url, second], chain.chain_id)
        harness = ChainHarness.of(chain, provider, empty_database, rpc)
        scan(harness.site)  # from here on
        ours = claimed_job(harness, provider)
        asked.clear()
        for status in (ChainStatus.RUNNING, ChainStatus.FINISHED):
            harness.writer.send([status_write(ours, status)])
        wait_for_receipts(harness)
        assert not harness.follow()
        assert job_of(harness, ours).state is State.SETTLED
        other, theirs = claimed_by_another(chain)
        end_on_chain(chain, other, theirs, "ended")
        scan(harness.site)
        assert "eth_getTransactionReceipt" not in asked


@contextmanager
def node_with_statuses(
    chain: Chain, statuses: Mapping[JobId, ChainStatus]
) -> Iterator[str]:
    """A node that shows these statuses of jobs on the contract."""

    def answer(calls: list[Call]) -> tuple[int, Any]:
        answers = {entry["id"]: entry for entry in real_answers(chain, calls)}
        for call in calls:
            if call["method"] != "eth_call":
                continue
            for job_id, status in statuses.items():
                if call["params"][0]["data"].endswith(job_id[2:]):
                    true = answers[call["id"]]["result"]
                    start = len("0x") + 2 * ABI_SLOT_DIGITS
                    rest = true[start + ABI_SLOT_DIGITS :]
                    said = f"{true[:start]}{status:064x}{rest}"
                    answers[call["id"]]["result"] = said
        return 200, list(answers.values())

    with node_proxy(chain, answer) as (_, url):
        yield url


def swept_contract(harness: ChainHarness, row: SqueueRow | None = None) -> Snapshot:
    """Do the part of a sweep that concerns the contract. SLURM lists the row, and all
    doubts are old.
    """
    contract, ledger = harness.site.chain.contract, harness.site.ledger
    services = ReconciliationServices(lambda _: contract, 60.0, 0.0, 0)
    site = replace(harness.site, reconciliation_services=services)
    jobs = ledger.reconciliations.active()
    kind = DiscrepancyKind.REASSIGNED_ON_CHAIN
    snapshot = Snapshot(
        provider=contract.provider,
        comment=OUR_COMMENT,
        jobs=jobs,
        slurm={} if row is None else {row.slurm_id: row},
        previous_doubts={doubt_key(kind, job_id): 1.0 for job_id in jobs},
        grace_s=0.0,
    )
    snapshot, _ = look_at_contract(site, snapshot, ReconciliationReport("a test"))
    found = find_discrepancies(snapshot)
    record_discrepancies(ledger, snapshot, found)
    assert not any(discrepancy.cancel for discrepancy in found)
    return snapshot


@pytest.mark.parametrize("how", ENDS)
def test_sweep__one_endpoint_has_the_job_as_over__the_job_goes_on(
    chain: Chain,
    empty_database: Engine,
    provider: Account,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cross_check, "DISAGREE_S", 0.0)
    said = dict[JobId, ChainStatus]()
    with node_with_statuses(chain, said) as lying:
        rpc = Endpoints([lying, chain.rpc_url], chain.chain_id)
        harness = ChainHarness.of(chain, provider, empty_database, rpc)
        scan(harness.site)  # from here on
        ours = claimed_job(harness, provider)
        before = job_of(harness, ours)
        status = ChainStatus.PENDING if how == "given back" else ChainStatus.CANCELLED
        said[ours] = status
        assert swept_contract(harness).unconfirmed_on_chain == {ours}
        assert job_of(harness, ours) == before
        assert AlarmName.ENDPOINTS_DISAGREE in harness.alarms()
        said.clear()
        end_on_chain(chain, provider, ours, how)
        harness.site.ledger.periodic_runs.record("scan")
        with harness.engine.begin() as connection:
            store = harness.site.ledger.cursors.set
            store(connection, CONTRACT_STREAM, chain.block_number(), "")
        assert swept_contract(harness).unconfirmed_on_chain == set()
        assert job_of(harness, ours).state is ENDS[how]


def test_disagreement__sweep_and_report_ask_in_turns__alarm_after_a_minute(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    said = dict[JobId, ChainStatus]()
    with node_with_statuses(chain, said) as lying:
        rpc = Endpoints([lying, chain.rpc_url], chain.chain_id)
        harness = ChainHarness.of(chain, provider, empty_database, rpc)
        first, second = scheduled_jobs(chain, provider, 2)
        status = ChainStatus.CANCELLED, chain.job(first).provider.lower()
        said.update({first: status[0], second: status[0]})
        ledger, contract = harness.site.ledger, harness.site.chain.contract
        for _ in range(2):
            assert AlarmName.ENDPOINTS_DISAGREE not in harness.alarms()
            for job_id, by in ((first, "sweep"), (second, "report")):
                doubted = unconfirmed_statuses(
                    ledger, contract, {job_id: status}, by=by
                )
                assert doubted == {job_id}
            let_time_pass(harness.engine, 40.0)
        unconfirmed_statuses(ledger, contract, {first: status}, by="sweep")
        assert AlarmName.ENDPOINTS_DISAGREE in harness.alarms()


def test_sweep__one_endpoint_has_a_slurm_job_as_over__it_is_not_cancelled(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    """The ledger does not know the job: it was restored from a backup."""
    (ours,) = scheduled_jobs(chain, provider, 1)
    chain.send(provider, "MetaScheduler", "claimNextJob")
    with node_with_statuses(chain, {ours: ChainStatus.CANCELLED}) as lying:
        rpc = Endpoints([lying, chain.rpc_url], chain.chain_id)
        harness = ChainHarness.of(chain, provider, empty_database, rpc)
        customer = chain.job(ours).customer.lower()
        in_slurm = row(name=ours, user=customer)
        assert swept_contract(harness, in_slurm).unconfirmed_on_chain == {ours}


def test_sweep__one_endpoint_has_a_new_claim_as_running__it_is_read_again(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    """The ledger was restored from a backup. A job that runs by the contract would
    never be submitted.
    """
    (ours,) = scheduled_jobs(chain, provider, 1)
    said = {ours: ChainStatus.RUNNING}
    with node_with_statuses(chain, said) as lying:
        rpc = Endpoints([lying, chain.rpc_url], chain.chain_id)
        harness = ChainHarness.of(chain, provider, empty_database, rpc)
        claim(harness.site)
        wait_for_receipts(harness)
        chain.mine(3)
        scan(harness.site)  # from here on
        assert known_jobs(harness) == set()
        snapshot = swept_contract(harness)
        assert (snapshot.unconfirmed_on_chain, snapshot.claims) == ({ours}, {})
        assert known_jobs(harness) == set()
        said.clear()
        assert swept_contract(harness).claims.keys() == {ours}


def test_report__one_endpoint_rejects_it_and_has_the_job_as_over__is_tried_again(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    said = dict[JobId, ChainStatus]()
    reverts = {"code": 3, "message": "execution reverted", "data": "0x"}
    with node_with_statuses(chain, said) as dishonest:

        def answer(calls: list[Call]) -> tuple[int, Any] | None:
            answers = requests.post(dishonest, json=calls, timeout=deadline(60)).json()
            by_id = {entry["id"]: entry for entry in answers}
            for call in calls:
                if said and call["method"] == "eth_estimateGas":
                    by_id[call["id"]] = {
                        "jsonrpc": "2.0",
                        "id": call["id"],
                        "error": reverts,
                    }
            return 200, list(by_id.values())

        with node_proxy(chain, answer) as (_, lying):
            rpc = Endpoints([lying, chain.rpc_url], chain.chain_id)
            harness = ChainHarness.of(chain, provider, empty_database, rpc)
            ours = started(harness, provider)
            before = job_of(harness, ours)
            said[ours] = ChainStatus.CANCELLED
            for _ in range(5):
                due(harness)
                report(harness.site)
            assert job_of(harness, ours) == before
            assert AlarmName.EFFECT_PARKED not in harness.alarms()
            said.clear()
            due(harness)
            report(harness.site)
            wait_until(lambda: not harness.follow(), "the report to be mined", 20.0)
            assert chain.job(ours).status is ChainStatus.RUNNING


def test_receipt__of_a_revert_and_one_endpoint_has_the_job_as_over__the_job_goes_on(
    chain: Chain, empty_database: Engine, provider: Account
) -> None:
    said = dict[JobId, ChainStatus]()
    with node_with_statuses(chain, said) as lying:
        rpc = Endpoints([lying, chain.rpc_url], chain.chain_id)
        harness = ChainHarness.of(chain, provider, empty_database, rpc)
        scan(harness.site)  # from here on
        ours = claimed_job(harness, provider)
        said[ours] = ChainStatus.CANCELLED
        # the contract rejects an end before the start
        harness.writer.send([status_write(ours, ChainStatus.FINISHED)])
        wait_until(lambda: not harness.follow(), "the revert to be read", 20.0)
        assert harness.states() == ["MINED", "REVERTED"]
        assert job_of(harness, ours).state is State.CLAIMED


# --- contracts of others --------------------------------------------------------------

# Emits a log: the first 32 bytes of the call's data are its topic, the rest its data.
IMPOSTOR_CODE = "0x60203603806020600037600035906000a100"


@contextmanager
def node_with_impostor(
    chain: Chain, impostor: str
) -> Iterator[tuple[threading.Event, str]]:
    """A node that shows the impostor as the contract of the jobs while the event is
    set, and that does not lie otherwise.
    """
    is_lying = threading.Event()
    ask = function("MetaScheduler", "jobs").encode()

    def answer(calls: list[Call]) -> tuple[int, Any] | None:
        if not is_lying.is_set():
            return None
        answers = {entry["id"]: entry for entry in real_answers(chain, calls)}
        for call in calls:
            if call["method"] == "eth_call" and call["params"][0]["data"] == ask:
                answers[call["id"]]["result"] = f"0x{impostor[2:]:0>64}"
        return 200, list(answers.values())

    with node_proxy(chain, answer) as (_, url):
        yield is_lying, url


def claim_of_another(chain: Chain, provider: Account) -> str:
    """The data of the log of another provider's claim, with this provider in it."""
    other = registered(chain)
    scheduled_jobs(chain, other, 1)
    receipt = chain.send(other, "MetaScheduler", "claimNextJob")
    (data,) = [
        log["data"] for log in receipt["logs"] if log["topics"][0] == CLAIMED.topic
    ]
    assert other.address[2:] in data
    return str(data.replace(other.address[2:], provider.address[2:]))


def emit(chain: Chain, impostor: str, topic: str, data: str) -> None:
    """Have the impostor emit a log."""
    sender = registered(chain).address
    chain.rpc.call("anvil_impersonateAccount", sender)
    call = {"from": sender, "to": impostor, "data": topic + data[2:]}
    tx_hash = chain.rpc.call("eth_sendTransaction", call)
    (receipt,) = chain.receipts([tx_hash])
    assert [log["topics"] for log in receipt["logs"]] == [[topic]]


@pytest.fixture
def impostor(chain: Chain) -> str:
    address = random_account().address
    chain.rpc.call("anvil_setCode", address, IMPOSTOR_CODE)
    return address


def test_claim__emitted_by_another_contract_that_an_endpoint_shows__no_job_is_begun(
    chain: Chain, empty_database: Engine, provider: Account, impostor: str
) -> None:
    """The endpoint lies while it is alone. Afterwards all endpoints show the log: it is
    on the chain.
    """
    is_away = threading.Event()
    with (
        node_with_impostor(chain, impostor) as (is_lying, lying),
        node_proxy(chain, lambda _: (503, "") if is_away.is_set() else None) as (
            _,
            honest,
        ),
    ):
        is_lying.set()
        is_away.set()
        rpc = Endpoints([lying, honest], chain.chain_id)
        harness = ChainHarness.of(chain, provider, empty_database, rpc)
        contract = harness.site.chain.contract
        assert contract.addresses.jobs == impostor.lower()
        scan(harness.site)  # from here on
        is_lying.clear()
        is_away.clear()
        emit(chain, impostor, CLAIMED.topic, claim_of_another(chain, provider))
        (ours,) = scheduled_jobs(chain, provider, 1)
        chain.send(provider, "MetaScheduler", "claimNextJob")

        def is_read() -> bool:
            scan(harness.site)
            return ours in known_jobs(harness)

        wait_until(is_read, "our own claim to be read", 20.0)
        assert known_jobs(harness) == {ours}


def test_end__emitted_by_another_contract_that_an_endpoint_shows__the_job_goes_on(
    chain: Chain,
    empty_database: Engine,
    provider: Account,
    impostor: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The endpoint lies while it is alone, and a worker starts. Afterwards all
    endpoints show the log.
    """
    monkeypatch.setattr(failover, "LOOK_AGAIN_S", 0.0)
    first = ChainHarness.of(chain, provider, empty_database)
    scan(first.site)  # from here on
    ours = claimed_job(first, provider)
    before = job_of(first, ours)
    is_away = threading.Event()
    with (
        node_with_impostor(chain, impostor) as (is_lying, lying),
        node_proxy(chain, lambda _: (503, "") if is_away.is_set() else None) as (
            _,
            honest,
        ),
    ):
        is_lying.set()
        is_away.set()
        rpc = Endpoints([lying, honest], chain.chain_id)
        harness = ChainHarness.of(chain, provider, empty_database, rpc)
        assert harness.site.chain.contract.addresses.jobs == impostor.lower()
        is_lying.clear()
        is_away.clear()

        def are_alive() -> bool:
            rpc.call("eth_blockNumber")  # which has the other one looked at
            return set(rpc.health().values()) == {Health.ALIVE}

        wait_until(are_alive, "both endpoints to be alive", 30.0, 0.01)
        end = transition(ours, ChainStatus.SCHEDULED, ChainStatus.CANCELLED)
        emit(chain, impostor, TRANSITION.topic, end)
        for _ in range(3):
            scan(harness.site)
        assert job_of(harness, ours) == before

        def is_settled() -> bool:
            scan(harness.site)
            return job_of(harness, ours).state is State.SETTLED

        end_on_chain(chain, provider, ours, "ended")
        wait_until(is_settled, "the true end to be read", 20.0)


@pytest.mark.parametrize("how", ["refuses connections", "never answers"])
def test_claim__second_endpoint_is_down__goes_on_after_a_while(
    chain: Chain,
    empty_database: Engine,
    provider: Account,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cross_check, "PATIENCE_S", 1.0)
    monkeypatch.setattr(nonces, "PATIENCE_S", -1.0)  # the ledger is new
    if how == "never answers":
        for name in ("LOOK_DEADLINE_S", "LEAST_SHARE_S", "DEADLINE_S"):
            # of the honest endpoint, too
            monkeypatch.setattr(failover, name, deadline(0.5))
    (job_id,) = scheduled_jobs(chain, provider, 1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1] if how == "never answers" else free_port()
        harness = ChainHarness.of(
            chain,
            provider,
            empty_database,
            Endpoints([chain.rpc_url, f"http://127.0.0.1:{port}"], chain.chain_id),
        )

        def is_written() -> bool:
            with suppress(RpcUnavailableError):  # the honest one was late
                claim(harness.site)
            return harness.rows() != []

        def is_taken() -> bool:
            with suppress(RpcUnavailableError):
                return not harness.follow()
            return False

        wait_until(is_written, "a claim", 30.0)
        wait_until(is_taken, "the claim to be taken from one endpoint", 30.0)
        assert known_jobs(harness) == {job_id}
        assert AlarmName.EVENTS_FROM_ONE_ENDPOINT in harness.alarms()
