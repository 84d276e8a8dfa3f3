"""Many blocks to read, of a real node behind one that shows the logs of a few blocks at
a time only.
"""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from sqlalchemy import Engine, text

from devgrid.chain.chain import Chain
from devgrid.chain.model import Account
from devgrid.machine import deadline
from devgrid.processes import wait_until
from supervisor_tasks.accounts.sync import make_accounts
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.contract import NEW_JOB
from supervisor_tasks.chain.rpc.client import Rpc, RpcUnavailableError
from supervisor_tasks.chain.rpc.failover import Endpoints
from supervisor_tasks.connections.bounded_http import MAX_BYTES
from supervisor_tasks.context import ReconciliationServices, WorkerContext
from supervisor_tasks.indexer.new_blocks import MAX_CUSTOMER_BLOCKS, NewBlocks
from supervisor_tasks.indexer.scan import scan
from supervisor_tasks.jobs.claim import look_at_queues
from supervisor_tasks.jobs.model import Address, EffectKind, State
from supervisor_tasks.ledger.cursor_names import CONTRACT_STREAM
from supervisor_tasks.ledger.facts import PROVIDER
from supervisor_tasks.ledger.outbox import request
from supervisor_tasks.reconciliation import backfill
from supervisor_tasks.site_services.directory import AccountForm, Directory, Member
from tests.support.http_servers import Quiet, http_server
from tests.support.rpc_proxies import Call, node_proxy, real_answers
from tests.support.wallet_harness import (
    CUSTOMERS,
    ChainHarness,
    scheduled_jobs,
)

pytestmark = pytest.mark.slow  # many blocks with many logs

BLOCKS = 100  # more than such a node shows at once
TOO_MANY = {"code": -32005, "message": "query returned more than 10000 results"}


@dataclass
class Picky:
    """A node that shows the logs of so many blocks at once, or none; of more it says
    no, or too much.
    """

    rpc_url: str
    most: int = 20
    talkative: bool = False
    url: str = ""
    asked: list[int] = field(default_factory=list)

    def answer(self, body: bytes) -> bytes:
        """What the node behind it says, but for what is too much."""
        request = urllib.request.Request(  # noqa: S310
            self.rpc_url, body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=deadline(60)) as answer:  # noqa: S310
            entries: list[dict[str, Any]] = json.load(answer)
        refused = {call["id"] for call in json.loads(body) if self._is_too_much(call)}
        if refused and self.talkative:
            return b"[" + b" " * MAX_BYTES + b"]"
        return json.dumps(
            [
                {"jsonrpc": "2.0", "id": entry["id"], "error": TOO_MANY}
                if entry["id"] in refused
                else entry
                for entry in entries
            ]
        ).encode()

    def _is_too_much(self, call: dict[str, Any]) -> bool:
        if call["method"] != "eth_getLogs":
            return False
        (query,) = call["params"]
        self.asked.append(1 + int(query["toBlock"], 16) - int(query["fromBlock"], 16))
        return self.asked[-1] > self.most


@contextmanager
def serving(node: Picky) -> Iterator[Picky]:
    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = node.answer(self.rfile.read(int(self.headers["Content-Length"])))
            with suppress(OSError):  # the caller has heard enough
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

    with http_server(Handler) as url:
        node.url = url
        yield node


@pytest.fixture
def node(chain: Chain) -> Iterator[Picky]:
    with serving(Picky(chain.rpc_url)) as found:
        yield found


def site_of(
    node: Picky, chain: Chain, provider: Account, engine: Engine
) -> WorkerContext:
    return ChainHarness.of(
        chain, provider, engine, Endpoints([node.url], chain.chain_id)
    ).site


def is_read(site: WorkerContext) -> bool:
    """Whether a scan has read all there is; as often as beat asks for one, it is
    tried again.
    """
    with suppress(RpcUnavailableError):
        scan(site)
    cursor = site.ledger.cursors.of(CONTRACT_STREAM)
    return cursor is not None and cursor[0] == int(
        site.chain.contract.rpc.call("eth_blockNumber"), 16
    )


def alarms(site: WorkerContext) -> list[str]:
    return [alarm.name for alarm in site.ledger.alarms.all()]


@pytest.mark.parametrize("talkative", [False, True])
def test_scan__node_rejects_long_ranges__all_blocks_are_read_in_short_ones(
    node: Picky,
    chain: Chain,
    provider: Account,
    empty_database: Engine,
    talkative: bool,
) -> None:
    node.talkative = talkative
    site = site_of(node, chain, provider, empty_database)
    scan(site)
    (job_id,) = scheduled_jobs(chain, provider, 1)
    chain.send(provider, "MetaScheduler", "claimNextJob")
    chain.mine(BLOCKS)
    wait_until(lambda: is_read(site), "all blocks read", 120.0)
    assert site.ledger.jobs([job_id])[job_id].state is State.CLAIMED
    assert max(node.asked) > node.most
    assert alarms(site) == []


def test_scan__node_shows_more_again__long_ranges_are_asked_for(
    node: Picky, chain: Chain, provider: Account, empty_database: Engine
) -> None:
    site = site_of(node, chain, provider, empty_database)
    scan(site)
    chain.mine(BLOCKS)
    wait_until(lambda: is_read(site), "all blocks read", 60.0)
    node.asked.clear()
    node.most = 10 * BLOCKS
    chain.mine(BLOCKS)
    scan(site)
    assert max(node.asked) > 20


def test_scan__no_range_is_short_enough__operator_is_called_until_one_is_answered(
    node: Picky, chain: Chain, provider: Account, empty_database: Engine
) -> None:
    node.most = 1
    site = site_of(node, chain, provider, empty_database)
    scan(site)
    chain.mine()
    node.most = 0
    assert not is_read(site)
    assert alarms(site) == []
    with empty_database.begin() as connection:
        connection.execute(
            text("UPDATE facts SET since = now() - interval '4 minutes'")
        )
    assert not is_read(site)
    (alarm,) = site.ledger.alarms.all()
    assert alarm.name == AlarmName.CHAIN_SCAN_STALLED
    assert TOO_MANY["message"] in alarm.details["error"]
    node.most = 1
    assert is_read(site)
    assert alarms(site) == []


def directory_that_is_away() -> Directory:
    form = AccountForm(
        people_dn="ou=people",
        group_dn="cn=users",
        member_attribute=Member.DN,
        object_classes=("posixAccount",),
        gid_number=1600,
        own_groups_dn="ou=groups",
        own_group_classes=("posixGroup",),
        home_directory="/home/{address}",
        login_shell="/bin/sh",
        attributes={},
        first_uid_number=None,
    )
    return Directory(
        url="ldap://127.0.0.1:9",
        bind_dn="",
        bind_password="",
        ca_path=None,
        verified=False,
        form=form,
    )


def accounts_wanted(engine: Engine) -> list[str]:
    """The customers whose account the ledger has asked for."""
    statement = text("SELECT subject FROM effects WHERE kind = 'account'")
    with engine.connect() as connection:
        return list(connection.scalars(statement))


def test_find_new_customers__node_rejects_the_question__next_one_is_short(
    node: Picky, chain: Chain, provider: Account, empty_database: Engine
) -> None:
    """After an outage each question was longer than the one before, and refused."""
    node.most = 2
    site = site_of(node, chain, provider, empty_database)
    site = replace(site, directory=directory_that_is_away())
    new_blocks = NewBlocks(site, 1.0, look_at_queues, lambda _: None)
    new_blocks.poll()
    chain.mine(3)
    with pytest.raises(RpcUnavailableError):
        new_blocks.poll()
    chain.mine()
    new_blocks.poll()
    assert node.asked == [3, 1]


def test_find_new_customers__many_blocks_were_missed__accounts_reads_them(
    node: Picky, chain: Chain, provider: Account, empty_database: Engine
) -> None:
    dispatched = list[str]()
    site = site_of(node, chain, provider, empty_database)
    site = replace(site, directory=directory_that_is_away())
    new_blocks = NewBlocks(site, 1.0, look_at_queues, dispatched.append)
    new_blocks.poll()
    dispatched.clear()
    chain.mine(MAX_CUSTOMER_BLOCKS + 1)
    new_blocks.poll()
    assert (node.asked, dispatched) == ([], ["accounts"])


def test_find_new_customers__worker_starts__accounts_reads_what_it_missed(
    node: Picky, chain: Chain, provider: Account, empty_database: Engine
) -> None:
    """A request of the blocks that were mined before the first look is read at once,
    and not when `accounts` is due the next time.
    """
    site = site_of(node, chain, provider, empty_database)
    site = replace(site, directory=directory_that_is_away())
    make_accounts(site)
    (job_id,) = scheduled_jobs(chain, provider, 1)
    chain.mine(3)
    dispatched = list[str]()
    NewBlocks(site, 1.0, look_at_queues, dispatched.append).poll()
    assert "accounts" in dispatched
    make_accounts(site)
    assert CUSTOMERS[job_id].address.lower() in accounts_wanted(empty_database)


# more of them are read again each time than the node shows at once
@pytest.mark.parametrize("confirmations", [0, 60])
def test_accounts__node_rejects_long_ranges__all_customers_are_heard(
    node: Picky,
    chain: Chain,
    provider: Account,
    empty_database: Engine,
    confirmations: int,
) -> None:
    site = site_of(node, chain, provider, empty_database)
    site = replace(
        site,
        directory=directory_that_is_away(),
        chain_services=replace(site.chain, confirmations=confirmations),
    )
    make_accounts(site)

    def heard() -> list[str]:
        make_accounts(site)
        return accounts_wanted(empty_database)

    for blocks in (BLOCKS, 1):
        (job_id,) = scheduled_jobs(chain, provider, 1)
        customer = CUSTOMERS[job_id].address.lower()
        chain.mine(blocks)
        wait_until(lambda: customer in heard(), "the customer", 60.0)  # noqa: B023


def test_accounts__no_endpoint_shows_logs__those_that_are_due_are_tried(
    node: Picky, chain: Chain, provider: Account, empty_database: Engine
) -> None:
    """They need the directory only, which is away here, too: the try leaves its
    error.
    """
    site = site_of(node, chain, provider, empty_database)
    site = replace(site, directory=directory_that_is_away())
    make_accounts(site)
    with empty_database.begin() as connection:
        request(
            connection,
            site.ledger.cluster,
            EffectKind.ACCOUNT,
            [Address("0x" + "c" * 40)],
        )
    node.most = 0
    chain.mine()
    with pytest.raises(RpcUnavailableError):
        make_accounts(site)
    with empty_database.connect() as connection:
        (error,) = connection.scalars(text("SELECT last_error FROM effects"))
    assert "directory" in error


def test_accounts__request_that_cannot_be_read__is_told_and_holds_up_no_other(
    chain: Chain, provider: Account, empty_database: Engine
) -> None:
    def answer(calls: list[Call]) -> tuple[int, Any] | None:
        """A request that is cut, one of another contract, and the real one."""
        if [call["method"] for call in calls] != ["eth_getLogs"]:
            return None
        (entry,) = real_answers(chain, calls)
        requests = entry["result"]
        for real in list(requests):
            cut = {**real, "data": real["data"][: len("0x") + 64]}
            others = {
                **real,
                "data": "0x" + "0" * 63 + "1" + "0" * 24 + "1" * 40,
                "address": "0x" + "d" * 40,
            }
            requests[:0] = [cut, others]
        return 200, [entry]

    with node_proxy(chain, answer) as (_, url):
        harness = ChainHarness.of(chain, provider, empty_database, Rpc.at(url))
        site = replace(harness.site, directory=directory_that_is_away())
        make_accounts(site)
        (job_id,) = scheduled_jobs(chain, provider, 1)
        make_accounts(site)
    assert accounts_wanted(empty_database) == [CUSTOMERS[job_id].address.lower()]
    (alarm,) = site.ledger.alarms.all()
    assert alarm.name == AlarmName.CHAIN_LOG_UNREADABLE
    assert alarm.details["topic"] == NEW_JOB.topic


def test_history__node_rejects_long_ranges__older_claims_are_read(
    node: Picky, chain: Chain, provider: Account, empty_database: Engine
) -> None:
    site = site_of(node, chain, provider, empty_database)
    start_block = chain.block_number()
    (job_id,) = scheduled_jobs(chain, provider, 1)
    chain.send(provider, "MetaScheduler", "claimNextJob")
    chain.mine(BLOCKS)
    scan(site)
    contract = site.chain.contract
    site = replace(
        site,
        reconciliation_services=ReconciliationServices(
            lambda _: contract, 900.0, 60.0, start_block
        ),
    )
    site.ledger.facts.set(PROVIDER, provider.address)
    found, left = set[str](), True
    while left:
        claims, _, first = backfill.read_old_claims(site, contract)
        found |= claims.keys()
        assert first is not None
        backfill.save_progress(site.ledger, first)
        left = backfill.has_pending_blocks(site)
    assert found == {job_id}
