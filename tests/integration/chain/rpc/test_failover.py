"""Several endpoints as one: real nodes that are killed, hang, drip, lag or serve
another chain.
"""

import json
import re
import socketserver
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account as Signer
from eth_utils.address import to_checksum_address
from sqlalchemy import Engine, text

from devgrid.chain.chain import Chain
from devgrid.chain.deployment import ANVIL, CHAIN_ID, start_anvil
from devgrid.chain.model import Account
from devgrid.faults.network_proxy import Direction, Fault, Proxy
from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import Processes, wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.contract import CLAIM
from supervisor_tasks.chain.rpc import failover
from supervisor_tasks.chain.rpc.client import Rpc, RpcError, RpcUnavailableError
from supervisor_tasks.chain.rpc.endpoint_health import BEHIND_BLOCKS, Health
from supervisor_tasks.chain.rpc.failover import Endpoints
from supervisor_tasks.chain.rpc.node_errors import NodeErrorKind, classify
from supervisor_tasks.chain_events import cross_check
from supervisor_tasks.connections import bounded_http
from supervisor_tasks.jobs.claim import claim
from supervisor_tasks.jobs.model import ChainStatus, JobId
from supervisor_tasks.ledger.figures import Figures
from supervisor_tasks.ledger.status_queries import Overview
from supervisor_tasks.monitoring.chain_alarms import ENDPOINT_UNAVAILABLE_S
from supervisor_tasks.observability.metrics import LedgerMetrics, LedgerReading
from supervisor_tasks.wallet import nonces
from supervisor_tasks.wallet.account import WalletAccount
from supervisor_tasks.wallet.gas import RevertedError
from supervisor_tasks.wallet.sent_transactions import SentTransactions
from supervisor_tasks.wallet.transaction_writer import TransactionWriter, Write
from tests.support.http_servers import Quiet, http_server
from tests.support.rpc_proxies import Call, node_proxy, real_answers
from tests.support.wallet_harness import (
    ChainHarness,
    claims,
    held,
    scheduled_jobs,
    sign_again,
    wait_for_receipts,
)

pytestmark = pytest.mark.slow  # outages that last

DEADLINE_S = 1.0


@contextmanager
def proxied(chain: Chain) -> Iterator[tuple[Proxy, str]]:
    with Proxy.start(chain.rpc_url.removeprefix("http://")) as proxy:
        yield proxy, f"http://{proxy.address}"


@contextmanager
def dripping(headers: bytes) -> Iterator[str]:
    """A server that answers a byte every now and then, and never ends."""
    ended = threading.Event()

    class Drip(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            try:
                self.request.sendall(headers)
                while not ended.wait(0.05):
                    self.request.sendall(b" ")
            except OSError:  # the caller has closed the connection
                return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Drip) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            ended.set()
            server.shutdown()
            thread.join()


KEYED = ("/v3/0123456789abcdef?apikey=fedcba9876543210", "/ab1?k=cd2", "/ext/bc/zebra")
KEYS = ("0123456789abcdef", "fedcba9876543210", "ab1", "cd2", "zebra", "u5r", "p4w")


class _Unauthorized(Quiet, BaseHTTPRequestHandler):
    status = 401

    def do_POST(self) -> None:
        """Says no, and to whom."""
        body = f"no project at {self.path}".encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Talkative(_Unauthorized):
    status = 200

    def do_POST(self) -> None:
        """An error of JSON-RPC that names the key."""
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))[0]
        words = " ".join(re.split("[/?&=]", self.path))
        error = {"code": -32000, "message": f"no project at {self.path}: {words}"}
        body = json.dumps(
            [{"jsonrpc": "2.0", "id": call["id"], "error": error}]
        ).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Chatty(_Unauthorized):
    status = 200

    def do_POST(self) -> None:
        """No JSON at all: the words of a proxy, with all it was asked."""
        body = f"<html>{self.path} {self.headers['Authorization']} is not known</html>".encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def answering(body: str) -> Iterator[str]:
    """A server that answers every question with the same words; N stands for the
    numbers of the calls.
    """

    class Parrot(_Unauthorized):
        def do_POST(self) -> None:
            calls = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = ", ".join(body.replace("N", str(call["id"])) for call in calls)
            whole = (
                (said if body.startswith(("<", "!")) else f"[{said}]")
                .removeprefix("!")
                .encode()
            )
            self.send_response(200)
            self.send_header("Content-Length", str(len(whole)))
            self.end_headers()
            self.wfile.write(whole)

    with http_server(Parrot) as url:
        yield url


GARBAGE = [
    "<html>502 Bad Gateway</html>",
    "!{}",
    "!null",
    "!7",
    "!" + "[" * 100_000,
    "null",
    "7",
    '"0x1"',
    "[]",
    "{}",
    '{"id": N}',
    '{"id": "N", "result": null}',
    '{"id": N, "result": null}',
    '{"id": N, "result": 7}',
    '{"id": N, "result": "twelve"}',
    '{"id": N, "result": {}}',
    '{"id": {}, "result": "0x1"}',
    '{"id": N, "error": "rate limited"}',
    '{"id": N, "error": ["rate limited"]}',
    '{"id": N, "error": {"code": null, "message": "no"}}',
    '{"id": N, "error": {"code": "-32000", "message": "no"}}',
    '{"id": N, "error": {}}',
]
ASKED = [
    "eth_chainId",
    "eth_blockNumber",
    "eth_getBalance",
    "eth_call",
    "eth_getLogs",
    "eth_getBlockByNumber",
]


@pytest.mark.filterwarnings("ignore:Received batch response")
@pytest.mark.parametrize("body", GARBAGE, ids=[body[:50] for body in GARBAGE])
def test_garbage__is_no_answer__and_the_next_endpoint_is_asked(
    chain: Chain, body: str
) -> None:
    with answering(body) as url:
        with pytest.raises(RpcUnavailableError):
            Rpc.at(url).batch([("eth_chainId", ()), ("eth_blockNumber", ())])
        rpc = Endpoints([url, chain.rpc_url], CHAIN_ID)

        # on a busy machine the other one is heard first, and asked
        def is_known() -> bool:
            assert int(rpc.call("eth_chainId"), 16) == CHAIN_ID
            return list(rpc.health().values()) == [Health.UNREACHABLE, Health.ALIVE]

        wait_until(is_known, "both endpoints to be looked at", 60.0, 0.1)


@pytest.mark.parametrize("method", ASKED)
def test_rpc__result_that_cannot_be__is_no_answer(method: str) -> None:
    body = '{"id": N, "result": {"number": null, "hash": "0x", "logs": [null]}}'
    with answering(body) as url, pytest.raises(RpcUnavailableError, match="answered"):
        Rpc.at(url).call(method)


def test_garbage__begins_while_an_endpoint_is_used__nothing_is_lost(
    chain: Chain,
    provider: Account,
    empty_database: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the ledger is new and the wallet is not: one endpoint is believed about nonces
    monkeypatch.setattr(nonces, "PATIENCE_S", -1.0)
    scheduled_jobs(chain, provider, 1)
    with answering('{"id": N, "result": null}') as url:
        rpc = Endpoints([url, chain.rpc_url], CHAIN_ID)
        first = rpc._endpoints[0]
        # as at its last look
        first._answered, first._chain_id, first._head = (
            True,
            CHAIN_ID,
            chain.block_number(),
        )
        first._head_s = first._looked_s = time.monotonic()
        harness = ChainHarness.of(chain, provider, empty_database, rpc)
        harness.writer.send(claims(1))
        assert rpc.health()[first.name] is Health.UNREACHABLE
        wait_until(lambda: not harness.follow(), "the receipt", 60.0, 0.1)
        assert harness.states() == ["MINED"]


@pytest.mark.parametrize("words", ["execution reverted", "no"])
def test_look__error_to_what_every_node_answers__is_no_answer(
    chain: Chain, words: str
) -> None:
    error = '{"id": N, "error": {"code": 3, "message": "WORDS"}}'.replace(
        "WORDS", words
    )
    with answering(error) as url:
        rpc = Endpoints([url, chain.rpc_url], CHAIN_ID)
        assert int(rpc.call("eth_chainId"), 16) == CHAIN_ID
        # The other one may have answered while the first was still looked at.
        first = rpc._endpoints[0].name
        wait_until(
            lambda: rpc.health()[first] is Health.UNREACHABLE,
            "the first to be unreachable",
            60.0,
        )


def test_node__without_the_contract__is_not_believed(
    chain: Chain, provider: Account, empty_database: Engine
) -> None:
    harness = ChainHarness.of(chain, provider, empty_database)
    code = chain.rpc.call("eth_getCode", chain.addresses.metascheduler, "latest")
    chain.rpc.call("anvil_setCode", chain.addresses.metascheduler, "0x")
    try:
        with pytest.raises(RpcUnavailableError, match="does not have the contract"):
            claim(harness.site)
    finally:
        chain.rpc.call("anvil_setCode", chain.addresses.metascheduler, code)
    claim(harness.site)


def test_logs__of_blocks_that_were_not_asked_for__the_next_endpoint_is_asked(
    chain: Chain, provider: Account
) -> None:
    scheduled_jobs(chain, provider, 1)
    head = chain.block_number()
    query = {"fromBlock": hex(head), "toBlock": hex(head)}
    (*_, true) = chain.rpc.call("eth_getLogs", query)

    def answer(calls: list[Call]) -> tuple[int, Any] | None:
        lie = {
            "jsonrpc": "2.0",
            "id": calls[0]["id"],
            "result": [true, {**true, "blockNumber": hex(head - 1)}],
        }
        return (200, [lie]) if calls[0]["method"] == "eth_getLogs" else None

    with node_proxy(chain, answer) as (asked, url):
        rpc = _all_alive(Endpoints([url, chain.rpc_url], CHAIN_ID))
        assert rpc.call("eth_getLogs", query) == chain.rpc.call("eth_getLogs", query)
        assert "eth_getLogs" in asked


def refusing(
    chain: Chain, methods: Sequence[str], code: int = -32005
) -> AbstractContextManager[tuple[list[str], str]]:
    """A node that answers all methods but these."""
    error = {"code": code, "message": "this node does not feel like it"}

    def answer(calls: list[Call]) -> tuple[int, Any]:
        real = zip(calls, real_answers(chain, calls), strict=True)
        return 200, [
            {"jsonrpc": "2.0", "id": call["id"], "error": error}
            if call["method"] in methods
            else true
            for call, true in real
        ]

    return node_proxy(chain, answer)


def _all_alive(rpc: Endpoints) -> Endpoints:
    def all_answer() -> bool:  # on a busy machine a look may be too late
        for endpoint in rpc._endpoints:
            endpoint.look()
        return set(rpc.health().values()) == {Health.ALIVE}

    wait_until(all_answer, "all endpoints to answer in time", 30.0)
    return rpc


READS = (
    "eth_call",
    "eth_getBalance",
    "eth_getTransactionCount",
    "eth_getTransactionReceipt",
    "eth_estimateGas",
)


@pytest.mark.parametrize("code", [-32005, -32603, -32601])
def test_node__lives_and_refuses__the_next_is_asked_and_the_work_goes_on(
    chain: Chain,
    provider: Account,
    empty_database: Engine,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The claim is then shown by one endpoint alone, and an alarm names it."""
    monkeypatch.setattr(cross_check, "PATIENCE_S", 0.1)
    monkeypatch.setattr(nonces, "PATIENCE_S", -1.0)
    scheduled_jobs(chain, provider, 1)
    with refusing(chain, READS, code=code) as (_, url):
        rpc = _all_alive(Endpoints([url, chain.rpc_url], CHAIN_ID))
        harness = ChainHarness.of(chain, provider, empty_database, rpc)
        claim(harness.site)
        wait_until(lambda: not harness.follow(), "the receipt", 60.0, 0.1)
        assert harness.states() == ["MINED"]
        assert harness.alarms() == {AlarmName.EVENTS_FROM_ONE_ENDPOINT}


def test_node__refuses_one_call_of_a_batch__the_batch_is_answered_by_the_next(
    chain: Chain, provider: Account
) -> None:
    with refusing(chain, ["eth_getBalance"]) as (_, url):
        rpc = _all_alive(Endpoints([url, chain.rpc_url], CHAIN_ID))
        head, balance = rpc.batch(
            [("eth_blockNumber", ()), ("eth_getBalance", (provider.address, "latest"))]
        )
        assert int(head, 16) == chain.block_number()
        assert int(balance, 16) > 0
        assert list(rpc.health().values()) == [Health.REJECTING, Health.ALIVE]


def test_nodes__all_refuse__the_first_ones_answers_count_and_none_is_away(
    chain: Chain, provider: Account
) -> None:
    with (
        refusing(chain, ["eth_maxPriorityFeePerGas"]) as (_, one),
        refusing(chain, ["eth_maxPriorityFeePerGas"]) as (_, two),
    ):
        rpc = _all_alive(Endpoints([one, two], CHAIN_ID))
        tip, head = rpc.batch(
            [("eth_maxPriorityFeePerGas", ()), ("eth_blockNumber", ())]
        )
        assert isinstance(tip, RpcError)
        assert int(head, 16) == chain.block_number()
        assert set(rpc.health().values()) == {Health.ALIVE}


def test_endpoints__contract_reverts_or_transaction_is_wrong__node_stays_alive(
    chain: Chain, provider: Account, empty_database: Engine
) -> None:
    with refusing(chain, []) as (_, one), refusing(chain, []) as (asked, two):
        rpc = _all_alive(Endpoints([one, two], CHAIN_ID))
        asked.clear()
        harness = ChainHarness.of(chain, provider, empty_database, rpc)
        # there is no job to claim
        (estimate,) = harness.writer.estimate([Write("claim", "claim", CLAIM.encode())])
        assert isinstance(estimate, RevertedError)
        assert "eth_estimateGas" not in asked
        harness.writer.send(claims(1))
        # that it is known, the first one says
        harness.sent_transactions.send_again(harness.sent_transactions.all())
        wait_until(
            lambda: asked.count("eth_sendRawTransaction") == 2,
            "both broadcasts to be spread",
            30.0,
        )
        assert set(rpc.health().values()) == {Health.ALIVE}


def _for_long(rpc: Endpoints, seconds: float) -> None:
    """As when that much time has passed since the endpoints were last well, or have
    refused.
    """
    for endpoint in rpc._endpoints:
        endpoint._rejected_s -= seconds
        if endpoint.unavailable_since_s is not None:
            endpoint.unavailable_since_s -= seconds


def _shown(harness: ChainHarness) -> list[float]:
    """The gauges of the endpoints, in their order."""
    summary = Overview(harness.engine, "here").snapshot()
    metrics = LedgerMetrics(
        "here", lambda: LedgerReading(summary, Figures(), True)
    ).collect()
    (family,) = (
        found for found in metrics if found.name == "supervisor_rpc_endpoint_alive"
    )
    assert [
        sample.labels["endpoint"].rpartition("#")[2] for sample in family.samples
    ] == ["1", "2"]
    assert not [sample for sample in family.samples if "s3cret" in str(sample.labels)]
    return [sample.value for sample in family.samples]


def test_endpoint__away_for_minutes__shows_in_alarm_and_gauge_until_it_is_back(
    chain: Chain, provider: Account, empty_database: Engine
) -> None:
    with proxied(chain) as (proxy, url):
        rpc = _all_alive(
            Endpoints([f"{chain.rpc_url}?k=s3cret", f"{url}?k=s3cret"], CHAIN_ID)
        )
        harness = ChainHarness.of(chain, provider, empty_database, rpc)

        def looked(well: int) -> bool:
            claim(harness.site)
            return _shown(harness) == [1, well]

        assert looked(1)
        proxy.fault(Fault.REFUSE)
        wait_until(lambda: looked(0), "the second endpoint to be looked at", 60.0, 0.1)
        assert harness.alarms() == set()
        _for_long(rpc, ENDPOINT_UNAVAILABLE_S)
        claim(harness.site)
        (alarm,) = harness.site.ledger.alarms.all()
        assert alarm.name == AlarmName.RPC_ENDPOINT_UNAVAILABLE
        (why,) = alarm.details["endpoints"].values()
        assert why.startswith("unreachable: the RPC endpoint does not answer")
        younger = ChainHarness.of(
            chain,
            provider,
            empty_database,
            Endpoints([f"{chain.rpc_url}?k=s3cret", f"{url}?k=s3cret"], CHAIN_ID),
        )
        claim(younger.site)
        assert harness.alarms() == {AlarmName.RPC_ENDPOINT_UNAVAILABLE}
        proxy.fault(None)
        # A look of another thread may come between the alarm and the gauge; then the
        # next one ends the alarm.
        wait_until(
            lambda: looked(1) and not harness.alarms(),
            "the second endpoint to be back",
            60.0,
            0.1,
        )


def test_endpoint__lives_and_refuses_again_and_again__alarms_until_it_does_no_more(
    chain: Chain, provider: Account, empty_database: Engine
) -> None:
    methods = list(READS)
    with refusing(chain, methods) as (asked, url):
        rpc = _all_alive(Endpoints([url, chain.rpc_url], CHAIN_ID))
        harness = ChainHarness.of(chain, provider, empty_database, rpc)
        claim(harness.site)
        refusals = asked.count("eth_getBalance")
        claim(harness.site)
        # it is asked after the other one
        assert asked.count("eth_getBalance") == refusals
        for _ in range(3):  # and from time to time first
            _for_long(rpc, failover.REJECTS_S + 1)
            claim(harness.site)
        assert asked.count("eth_getBalance") == refusals + 3
        assert harness.alarms() == {AlarmName.RPC_ENDPOINT_UNAVAILABLE}
        methods.clear()
        _for_long(rpc, failover.REJECTS_S + 1)
        claim(harness.site)
        assert harness.alarms() == {AlarmName.RPC_ENDPOINT_UNAVAILABLE}
        _for_long(rpc, failover.MENDED_S)
        claim(harness.site)
        assert harness.alarms() == set()
        assert set(rpc.health().values()) == {Health.ALIVE}


TOO_MANY: dict[str, Callable[[list[Call]], tuple[int, Any]]] = {
    "Erigon": lambda _: (
        200,
        {
            "jsonrpc": "2.0",
            "id": None,
            "error": {"code": -32000, "message": "batch limit 100"},
        },
    ),
    "geth": lambda calls: (
        200,
        [
            {
                "jsonrpc": "2.0",
                "id": calls[0]["id"],
                "error": {"code": -32600, "message": "batch too large"},
            }
        ],
    ),
    "a proxy": lambda _: (413, "Request Entity Too Large"),
}


@pytest.mark.parametrize(
    ("node", "most", "at_once"),
    [
        ("Erigon", 100, 100),
        ("geth", 100, 100),
        ("a proxy", 100, 100),
        ("Erigon", 60, 50),
        ("geth", 12, 12),
    ],
)
def test_node__takes_few_calls_at_once__gets_smaller_batches_from_then_on(
    chain: Chain,
    provider: Account,
    empty_database: Engine,
    node: str,
    most: int,
    at_once: int,
) -> None:
    sizes: list[int] = []

    def answer(calls: list[Call]) -> tuple[int, Any] | None:
        sizes.append(len(calls))
        return TOO_MANY[node](calls) if len(calls) > most else None

    job_ids = scheduled_jobs(chain, provider, 2)
    nobodys = [JobId(f"0x{number:064x}") for number in range(1, 251)]
    with node_proxy(chain, answer) as (_, url):
        rpc = _all_alive(Endpoints([url], CHAIN_ID))
        contract = ChainHarness.of(
            chain, provider, empty_database, rpc
        ).site.chain.contract
        found = contract.on_chain([*nobodys, *job_ids], chain.block_number())
        assert {job_id: job.changed_block for job_id, job in found.items()} == {
            job_id: chain.job(job_id).block_number_state_change for job_id in job_ids
        }
        assert set(rpc.health().values()) == {Health.ALIVE}
        sizes.clear()
        assert contract.on_chain(
            [*job_ids, *nobodys], chain.block_number()
        ).keys() == set(job_ids)
        asked = [size for size in sizes if size > 2]  # others are looks
        assert max(asked) == at_once
        assert len(asked) <= -(-252 // at_once)


def test_node__takes_a_thousand_calls__gets_a_thousand(
    chain: Chain, provider: Account, empty_database: Engine
) -> None:
    sizes: list[int] = []
    with node_proxy(chain, lambda calls: sizes.append(len(calls))) as (_, url):
        contract = ChainHarness.of(
            chain, provider, empty_database, Rpc.at(url)
        ).site.chain.contract
        contract.on_chain(
            [JobId(f"0x{number:064x}") for number in range(1, 2001)],
            chain.block_number(),
        )
    assert sizes[-2:] == [1000, 1000]


@pytest.mark.parametrize("status", [401, 429, 503])
def test_node__refuses_all_batches__is_not_asked_call_by_call(
    chain: Chain, status: int
) -> None:
    requests_made: list[int] = []

    def answer(calls: list[Call]) -> tuple[int, Any]:
        requests_made.append(len(calls))
        return status, "no"

    with node_proxy(chain, answer) as (_, url):
        rpc = Rpc.at(url)
        with pytest.raises(RpcUnavailableError, match=str(status)):
            rpc.batch([("eth_chainId", ())] * 100)
    assert len(requests_made) <= 5


def test_endpoints__two_keys_at_one_host__are_told_apart_without_showing_them(
    chain: Chain,
) -> None:
    port = chain.rpc_url.rpartition(":")[2]
    rpc = Endpoints(
        [f"http://127.0.0.1:{port}?k=a1", f"http://127.0.0.1:{port}?k=b2"], 1
    )
    with pytest.raises(RpcUnavailableError) as caught:
        rpc.call("eth_chainId")
    assert set(rpc.health()) == {
        f"http://127.0.0.1:{port}#1",
        f"http://127.0.0.1:{port}#2",
    }
    assert f"{port}#2 wrong chain" in str(caught.value)


@pytest.mark.parametrize("keyed", KEYED)
@pytest.mark.parametrize("handler", [None, _Unauthorized, _Talkative, _Chatty])
def test_key__in_the_url_however_short__is_in_no_error_and_no_traceback(
    handler: type[BaseHTTPRequestHandler] | None, keyed: str
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler or _Unauthorized)
    url = f"http://u5r:p4w@127.0.0.1:{server.server_address[1]}{keyed}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    if handler is None:
        server.shutdown()
        server.server_close()
    for rpc in (Rpc.at(url), Endpoints([url], CHAIN_ID)):
        with pytest.raises((RpcError, RpcUnavailableError)) as caught:
            rpc.call("eth_chainId")
        shown = "".join(traceback.format_exception(caught.value))
        assert not [key for key in KEYS if key in shown]
    if handler is not None:
        server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "headers",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: ",
    ],
    ids=["body", "chunk", "header"],
)
def test_node__sends_its_answer_drop_by_drop__no_call_exceeds_the_deadline(
    headers: bytes,
) -> None:
    with dripping(headers) as url:
        rpc, begun_s = Rpc.at(url, DEADLINE_S), time.monotonic()
        with pytest.raises(RpcUnavailableError):
            rpc.call("eth_chainId")
        assert DEADLINE_S * 0.9 < time.monotonic() - begun_s < deadline(DEADLINE_S + 20)


def test_bounded_http__answer_without_end__is_cut_at_the_limit() -> None:
    ends = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
        + b" " * 20_000
    )
    with dripping(ends) as url, pytest.raises(OSError, match="expected at most"):
        bounded_http.session(30.0, most_bytes=10_000).post(
            url, data=b"{}", timeout=deadline(30.0)
        )


def test_endpoint_rejects__the_next_is_asked__and_the_first_again_when_it_is_back(
    chain: Chain,
) -> None:
    with proxied(chain) as (proxy, url):
        rpc = Endpoints([url, chain.rpc_url], CHAIN_ID)
        assert int(rpc.call("eth_chainId"), 16) == CHAIN_ID
        proxy.fault(Fault.REFUSE)

        def away() -> bool:
            assert int(rpc.call("eth_chainId"), 16) == CHAIN_ID
            return list(rpc.health().values()) == [Health.UNREACHABLE, Health.ALIVE]

        # the first call may be answered before the first look at this one has ended
        wait_until(away, "the first endpoint to be unreachable", 60.0, 0.2)
        proxy.fault(None)
        passed = proxy.connections

        def back() -> bool:
            rpc.call("eth_blockNumber")
            return (
                rpc.health()[f"http://{proxy.address}#1"] is Health.ALIVE
                and proxy.connections > passed
            )

        wait_until(back, "the first endpoint to be used again", 60.0, 0.2)


def test_endpoint__hangs__is_left_for_the_next(chain: Chain) -> None:
    with proxied(chain) as (proxy, url):
        rpc = Endpoints([url, chain.rpc_url], CHAIN_ID)
        rpc.call("eth_chainId")
        proxy.fault(Fault.HANG)
        begun_s = time.monotonic()
        assert int(rpc.call("eth_blockNumber"), 16) >= 0
        for _ in range(20):  # and costs nothing more
            rpc.call("eth_blockNumber")
        assert time.monotonic() - begun_s < deadline(25.0)


@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.extended), 2])
def test_endpoints__all_slow__are_asked_all_the_same(chain: Chain, number: int) -> None:
    """Each needs longer for an answer than a look waits where there may be a better
    one.
    """
    broken = threading.Event()

    def answer(_: list[Call]) -> tuple[int, Any] | None:
        return (503, "no") if broken.wait(failover.LOOK_DEADLINE_S + 0.4) else None

    with ExitStack() as stack:
        urls = [
            stack.enter_context(node_proxy(chain, answer))[1] for _ in range(number)
        ]
        rpc = Endpoints(urls, CHAIN_ID)
        first = rpc._endpoints[0]
        assert int(rpc.call("eth_chainId"), 16) == CHAIN_ID
        assert rpc.health()[first.name] is Health.ALIVE
        first.look()  # as from time to time: by now it is known to be slow
        assert rpc.health()[first.name] is Health.ALIVE
        broken.set()
        first.look()
        assert rpc.health()[first.name] is Health.UNREACHABLE


def test_endpoint__of_another_chain__is_never_used_and_alarms(
    processes: Processes, chain: Chain, provider: Account, empty_database: Engine
) -> None:
    port = free_port()
    other = f"http://127.0.0.1:{port}"
    command: list[str | Path] = [
        ANVIL,
        "--port",
        str(port),
        "--chain-id",
        "1",
        "--silent",
        "--accounts",
        "1",
    ]
    processes.start(
        "other-chain",
        command,
        env={"HOME": str(processes.folder)},
        ready=lambda: _answers(other),
    )
    rpc = Endpoints([other, chain.rpc_url], CHAIN_ID)
    harness = ChainHarness.of(chain, provider, empty_database, rpc)

    def is_known() -> bool:  # on a busy machine the other one is heard first, and asked
        claim(harness.site)
        known = list(rpc.health().values()) == [Health.WRONG_CHAIN, Health.ALIVE]
        return known and harness.alarms() == {AlarmName.WRONG_CHAIN}

    wait_until(is_known, "both endpoints to be looked at", 60.0, 0.1)
    alone = ChainHarness.of(
        chain, provider, empty_database, Endpoints([other], CHAIN_ID)
    )
    with pytest.raises(
        RpcUnavailableError, match="serves chain 1, the settings want 179188"
    ):
        claim(alone.site)
    assert alone.alarms() == {AlarmName.WRONG_CHAIN}
    _silent_for_long(empty_database)
    with pytest.raises(RpcUnavailableError):
        claim(alone.site)
    assert alone.alarms() == {AlarmName.WRONG_CHAIN, AlarmName.CHAIN_NOT_ANSWERING}
    harness.site.chain.contract.rpc.call("eth_chainId")
    claim(
        ChainHarness.of(
            chain, provider, empty_database, Endpoints([chain.rpc_url], CHAIN_ID)
        ).site
    )
    assert harness.alarms() == set()


def _answers(url: str) -> bool:
    try:
        return bool(Rpc.at(url).call("eth_chainId"))
    except RpcUnavailableError:
        return False


def _silent_for_long(engine: Engine) -> None:
    """As when workers have failed for so long."""
    with engine.begin() as connection:
        for change in (
            "periodic_runs SET succeeded_at = now() - interval '70 seconds' WHERE name = 'chain'",
            "facts SET since = now() - interval '70 seconds' WHERE name = 'condition.chain_not_answering'",
        ):
            connection.execute(text(f"UPDATE {change}"))


def test_chain__silent__is_an_alarm_only_after_a_long_time(
    chain: Chain, provider: Account, empty_database: Engine
) -> None:
    with proxied(chain) as (proxy, url):
        harness = ChainHarness.of(
            chain, provider, empty_database, Endpoints([url], CHAIN_ID)
        )
        claim(harness.site)
        proxy.fault(Fault.REFUSE)
        with pytest.raises(RpcUnavailableError):
            claim(harness.site)
        assert harness.alarms() == set()
        _silent_for_long(empty_database)
        with pytest.raises(RpcUnavailableError):
            claim(harness.site)
        assert harness.alarms() == {AlarmName.CHAIN_NOT_ANSWERING}
        proxy.fault(None)
        claim(harness.site)
        assert harness.alarms() == set()


def test_no_endpoint_answers__alarm_until_one_does__and_nothing_is_lost(
    chain: Chain, provider: Account, empty_database: Engine
) -> None:
    scheduled_jobs(chain, provider, 2)
    with proxied(chain) as (proxy, url):
        harness = ChainHarness.of(
            chain, provider, empty_database, Endpoints([url], CHAIN_ID)
        )
        with held(chain):
            harness.writer.send(claims(2))
            proxy.fault(Fault.REFUSE)
            with pytest.raises(RpcUnavailableError):
                claim(harness.site)
            with pytest.raises(RpcUnavailableError):
                harness.follow()
            assert harness.alarms() == {AlarmName.CHAIN_NOT_ANSWERING}
            assert set(harness.states()) == {"SENT"}
        proxy.fault(None)
        claim(harness.site)
        assert harness.alarms() == set()
        wait_until(lambda: not harness.follow(), "the receipts", 60.0, 0.1)
        assert set(harness.states()) == {"MINED"}


def test_endpoint__lags__is_not_believed(
    processes: Processes, chain: Chain, provider: Account, empty_database: Engine
) -> None:
    """The lagging one is a fork of the chain that stays where it was."""
    scheduled_jobs(chain, provider, 3)
    behind = chain.block_number()
    options = (
        "--fork-url",
        chain.rpc_url,
        "--fork-block-number",
        str(behind),
        "--no-mining",
    )
    lagging = f"http://127.0.0.1:{start_anvil(processes, None, *options)}"
    chain.mine(BEHIND_BLOCKS + 10)
    with proxied(chain) as (proxy, url), proxied(chain) as (second, another):
        # a claim is believed that two of them show
        rpc = Endpoints([lagging, url, another], CHAIN_ID)
        harness = ChainHarness.of(chain, provider, empty_database, rpc)
        wait_until(lambda: _sees_all(rpc), "the endpoints to be compared", 60.0, 0.1)
        harness.writer.send(claims(2))
        wait_for_receipts(harness)
        assert not harness.follow()
        assert harness.states() == ["MINED", "MINED"]
        harness.writer.send(claims(1, first=2))
        for one in (proxy, second):
            one.fault(Fault.REFUSE)
        with pytest.raises(RpcUnavailableError, match="behind"):
            harness.follow()  # not that the transaction has vanished
        for one in (proxy, second):
            one.fault(None)
        wait_until(lambda: _is_followed(harness), "the receipt", 60.0, 0.2)
    assert harness.states() == ["MINED"] * 3
    assert harness.signatures() == 3


def _sees_all(rpc: Endpoints) -> bool:
    rpc.call("eth_blockNumber")
    for endpoint in rpc._endpoints:
        endpoint.look()
    return list(rpc.health().values()) == [Health.BEHIND, Health.ALIVE, Health.ALIVE]


def _is_followed(harness: ChainHarness) -> bool:
    try:
        return not harness.follow()
    except RpcUnavailableError:
        return False


def test_chain__without_base_fee__takes_legacy_transactions_and_replacements(
    processes: Processes, empty_database: Engine
) -> None:
    url = f"http://127.0.0.1:{start_anvil(processes, None, '--hardfork', 'berlin', '--no-mining')}"
    rpc, signer = Rpc.at(url), Signer.create()
    rpc.call("anvil_setBalance", signer.address, hex(10**20))
    account = WalletAccount(
        empty_database, "here", rpc, CHAIN_ID, bytes(signer.key).hex()
    )
    TransactionWriter(account, signer.address).send(claims(2))
    sent_transactions = SentTransactions(account)
    first = sent_transactions.all()
    assert all(entry.fees.legacy for entry in first)
    sign_again(account)
    again = sent_transactions.all()
    assert all(
        new.fees.max_fee_wei * 10 >= old.fees.max_fee_wei * 11
        for new, old in zip(again, first, strict=True)
    )
    assert [entry.accepted for entry in again] == [True, True]
    rpc.call("anvil_mine")
    receipts = rpc.batch(
        [("eth_getTransactionReceipt", (entry.hash,)) for entry in again]
    )
    assert [receipt["status"] for receipt in receipts] == ["0x1", "0x1"]
    assert [receipt["type"] for receipt in receipts] == ["0x0", "0x0"]


def test_classify__words_of_a_real_node__are_the_kind_of_its_refusal(
    chain: Chain,
) -> None:
    """The words of the anvil that runs here, sorted as the table of refusals has it."""
    account = chain.new_account()
    rpc, nonce = chain.rpc, 0
    with held(chain):
        said = {
            NodeErrorKind.ALREADY_KNOWN: _refused(
                chain, account, nonce=nonce, twice=True
            ),
            NodeErrorKind.REPLACEMENT_UNDERPRICED: _refused(
                chain, account, nonce=nonce, gas=50_000
            ),
            NodeErrorKind.GAS: _refused(chain, account, nonce=nonce + 1, gas=100),
            NodeErrorKind.INSUFFICIENT_FUNDS: _refused(
                chain, account, nonce=nonce + 1, value=10**30
            ),
        }
        chain.mine()
        said[NodeErrorKind.NONCE_TOO_LOW] = _refused(
            chain, account, nonce=nonce, gas=60_000
        )
    assert {refusal: classify(words) for refusal, words in said.items()} == {
        refusal: refusal for refusal in said
    }
    assert int(rpc.call("eth_getTransactionCount", account.address, "latest"), 16) == 1


def _refused(
    chain: Chain,
    account: Account,
    nonce: int,
    gas: int = 21_000,
    value: int = 0,
    twice: bool = False,
) -> str:
    fees = {"maxFeePerGas": 200 * 10**9, "maxPriorityFeePerGas": 10**9, "type": 2}
    to = to_checksum_address(account.address)
    fields = {
        "chainId": CHAIN_ID,
        "nonce": nonce,
        "gas": gas,
        "to": to,
        "value": value,
        "data": "0x",
        **fees,
    }
    raw = (
        "0x"
        + Signer.sign_transaction(fields, account.private_key).raw_transaction.hex()
    )
    answers = chain.rpc.batch(
        [("eth_sendRawTransaction", (raw,))] * (2 if twice else 1)
    )
    assert isinstance(answers[-1], RpcError), answers
    return answers[-1].message


def test_broadcast__two_endpoints__reaches_the_other_one_too(
    chain: Chain, provider: Account, empty_database: Engine
) -> None:
    scheduled_jobs(chain, provider, 1)
    with proxied(chain) as (proxy, url):
        rpc = Endpoints([chain.rpc_url, url], CHAIN_ID)
        harness = ChainHarness.of(chain, provider, empty_database, rpc)
        for endpoint in rpc._endpoints:
            endpoint.look()
        before = proxy.passed[Direction.TO_SERVER]
        with held(chain):
            harness.writer.send(claims(40))
            sent_bytes = sum(2 * len(raw) for (raw,) in harness.rows("raw"))
            wait_until(
                lambda: proxy.passed[Direction.TO_SERVER] - before > sent_bytes,
                "the other endpoint to be told",
                30.0,
            )


def test_statuses__of_a_node_that_is_behind__are_not_believed(
    chain: Chain, provider: Account, empty_database: Engine
) -> None:
    (job_id,) = scheduled_jobs(chain, provider, 1)
    contract, head = (
        ChainHarness.of(chain, provider, empty_database).site.chain.contract,
        chain.block_number(),
    )
    assert (
        contract.statuses([job_id], not_before=head)[job_id][0]
        is ChainStatus.META_SCHEDULED
    )
    with pytest.raises(RpcUnavailableError, match="seen already"):
        contract.statuses([job_id], not_before=head + 1)
