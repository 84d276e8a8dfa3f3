"""Probes of the RPC endpoints, the contract, the wallet and the provider's registration."""

import json
import socket
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from urllib.parse import urlsplit

from websockets.sync.client import connect

from supervisor_tasks.chain.rpc.client import Rpc, require
from supervisor_tasks.config.url_secrets import shown
from supervisor_tasks.doctor.check_results import Finding, NotTriedError, yellow
from supervisor_tasks.doctor.probe_context import (
    CONNECT_S,
    PROXIED,
    ProbeContext,
    is_proxied,
)
from supervisor_tasks.doctor.probe_runner import Probe, error_line
from supervisor_tasks.doctor.verdicts import (
    EndpointSeen,
    WalletSeen,
    announcements_verdict,
    contract_verdict,
    endpoint_verdicts,
    reading_verdict,
    registration_verdict,
    wallet_verdict,
)
from supervisor_tasks.ledger.cursor_names import CONTRACT_STREAM
from supervisor_tasks.ledger.earnings import Earnings, EarningsFilter
from supervisor_tasks.ledger.periodic_run_names import IDLE_S, SCANNED
from supervisor_tasks.observability.health import MISSED_INTERVALS

ENDPOINT = "mend the endpoint, or take it out of METASCHEDULER_ENDPOINT_RPC"
CONTRACT = (
    "correct METASCHEDULER_SMART_CONTRACT and CHAIN_ID, or METASCHEDULER_ENDPOINT_RPC"
)
MAX_BYTES = 10_000  # of a node's answer
MONTH = timedelta(days=30)
# of a claim and two reports, while the ledger has no job to measure
GAS_OF_A_JOB = 3 * 250_000


def endpoints(shared: ProbeContext) -> Iterable[Finding]:
    """Whether each RPC endpoint answers, for which chain, with which head and how
    fast.
    """
    urls = shared.settings.rpc_urls
    with ThreadPoolExecutor(len(urls)) as pool:
        seen = list(pool.map(_look, urls, range(1, len(urls) + 1)))
    return endpoint_verdicts(seen, shared.settings.chain_id)


def _look(url: str, number: int) -> EndpointSeen:
    name, begun_s = shown(url, number), time.monotonic()
    try:
        answers = Rpc.at(url, CONNECT_S, name).batch(
            [("eth_chainId", ()), ("eth_blockNumber", ())]
        )
        chain_id, head = (int(require(answer), 16) for answer in answers)
    except Exception as error:  # noqa: BLE001  the other endpoints are judged too
        return EndpointSeen(name, error=error_line(error))
    return EndpointSeen(name, chain_id, head, time.monotonic() - begun_s)


def announcements(shared: ProbeContext) -> Iterator[Finding]:
    """Whether the endpoint that announces new blocks answers, and for which chain."""
    url = shared.settings.ws_url
    if url is None:
        raise NotTriedError("METASCHEDULER_ENDPOINT_WS is not set: blocks are polled")
    if is_proxied(urlsplit(url).hostname or ""):
        raise NotTriedError(PROXIED)
    name, begun_s = shown(url, 1), time.monotonic()
    try:
        chain_id = _chain_over_websocket(url)
    except Exception as error:  # noqa: BLE001  without announcements, the fleet works on
        seen = EndpointSeen(name, error=error_line(error))
    else:
        seen = EndpointSeen(name, chain_id, took_s=time.monotonic() - begun_s)
    yield announcements_verdict(seen, shared.settings.chain_id)


def _chain_over_websocket(url: str) -> int:
    """Return the chain's id. With a socket of ours, websockets follows no redirect: the
    node must not choose a server.
    """
    parts = urlsplit(url)
    default_port = 80
    if parts.scheme == "wss":
        default_port = 443
    connection = socket.create_connection(
        (parts.hostname or "", parts.port or default_port), CONNECT_S
    )
    with connect(
        url,
        sock=connection,
        open_timeout=CONNECT_S,
        close_timeout=0.5,
        proxy=None,
        max_size=MAX_BYTES,
    ) as node:
        node.send(
            json.dumps(
                {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
            )
        )
        return int(json.loads(node.recv(timeout=CONNECT_S))["result"], 16)


def contract(shared: ProbeContext) -> Iterator[Finding]:
    """Whether the contract answers and takes jobs."""
    found, demand = shared.chain.get()
    yield contract_verdict(found.address, is_open=demand.open)


def registration(shared: ProbeContext) -> Iterator[Finding]:
    """What the contract lets the provider do."""
    _, demand = shared.chain.needed()
    may = demand.permission
    yield registration_verdict(valid=may.valid, waiting=may.waiting, banned=may.banned)


def wallet(shared: ProbeContext) -> Iterator[Finding]:
    """What the wallet holds, and for how many jobs it pays the gas."""
    found, demand = shared.chain.needed()
    paid = Earnings(shared.engine.needed(), shared.settings.cluster_name).total(
        EarningsFilter(since=MONTH)
    )
    is_measured = paid.jobs > 0 and paid.fees_wei > 0
    if is_measured:
        job_wei = paid.fees_wei // paid.jobs
    else:
        price_wei = int(found.rpc.call("eth_gasPrice"), 16)
        job_wei = GAS_OF_A_JOB * price_wei
    least_wei = shared.settings.wallet_min_wei
    yield wallet_verdict(
        WalletSeen(found.provider, demand.balance_wei, least_wei, job_wei, is_measured)
    )


def reading(shared: ProbeContext) -> Iterator[Finding]:
    """How far the ledger has read the chain."""
    found, _ = shared.chain.needed()
    cursor = shared.ledger.cursors.of(CONTRACT_STREAM)
    scanned_s = shared.ledger.periodic_runs.age_s(SCANNED)
    head = int(found.rpc.call("eth_blockNumber"), 16)
    last_read = None
    if cursor is not None:
        last_read = cursor[0]
    yield reading_verdict(
        last_read, head, scanned_s, MISSED_INTERVALS * IDLE_S[SCANNED]
    )


SETTINGS = (
    Probe("RPC endpoints", endpoints, ENDPOINT),
    Probe(
        "WebSocket endpoint",
        announcements,
        "correct METASCHEDULER_ENDPOINT_WS",
        failed=yellow,
    ),
    Probe("contract", contract, CONTRACT),
)
FLEET = (
    Probe("provider", registration, CONTRACT),
    Probe("wallet", wallet, ENDPOINT),
    Probe("chain reading", reading, ENDPOINT),
)
