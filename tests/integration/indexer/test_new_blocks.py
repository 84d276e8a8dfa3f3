"""New blocks dispatch claim and scan: real nodes, a network that cuts and falls silent, and
polling that takes over.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import structlog
from sqlalchemy import Engine, event

from devgrid.chain.chain import Chain
from devgrid.chain.deployment import ANVIL, start_chain
from devgrid.chain.model import Account, ChainNode, ChainPrices
from devgrid.faults.network_proxy import Fault, Proxy
from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import Processes, answers, wait_until
from devgrid.state_folder import private_processes
from supervisor_tasks.chain.contract import CLAIM
from supervisor_tasks.chain.rpc.client import Rpc
from supervisor_tasks.indexer.new_blocks import PAUSE_S, QUIET_S, NewBlocks
from supervisor_tasks.jobs.claim import anything_to_claim
from supervisor_tasks.jobs.model import State
from supervisor_tasks.ledger.alarms import AlarmName, Switch
from supervisor_tasks.ledger.periodic_run_names import finished_key
from supervisor_tasks.ledger.status_queries import Overview
from supervisor_tasks.wallet.transaction_writer import Write
from tests.support.wallet_harness import (
    GAS,
    ChainHarness,
    databases,
    empty,
    scheduled_jobs,
    wait_for_receipts,
)

PATIENCE_S = 10.0
NEVER_S = 600.0  # between two looks: only what was announced can have been the cause
OFTEN_S = 0.2
FAR_OFF = {"blockNumber": hex(10**9), "address": "0x" + "0" * 40, "topics": []}


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with private_processes() as running:
        yield running


@pytest.fixture(scope="module")
def database(processes: Processes) -> Iterator[Engine]:
    with databases(processes, "one") as (engine,):
        yield engine


@pytest.fixture
def engine(database: Engine) -> Engine:
    empty(database)
    return database


@pytest.fixture(scope="module")
def chain(processes: Processes) -> Chain:
    return start_chain(processes)


@pytest.fixture
def provider(chain: Chain) -> Account:
    account = chain.new_account()
    chain.register_provider(account, [ChainNode(2, 32, 64_000)], ChainPrices())
    return account


@pytest.fixture
def fleet(chain: Chain, provider: Account, engine: Engine) -> ChainHarness:
    return ChainHarness.of(chain, provider, engine)


@pytest.fixture
def proxy(chain: Chain) -> Iterator[Proxy]:
    with Proxy.start(chain.rpc_url.removeprefix("http://")) as proxy:
        yield proxy


Entries = list[dict[str, object]]


@pytest.fixture
def logged() -> Iterator[Entries]:
    with structlog.testing.capture_logs() as entries:
        yield entries  # type: ignore[misc]


class Dispatched:
    """Which tasks were dispatched."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.tasks: list[str] = []

    def __call__(self, task: str) -> None:
        with self._lock:
            self.tasks.append(task)


@contextmanager
def watching(
    fleet: ChainHarness, poll_s: float, url: str | None
) -> Iterator[tuple[NewBlocks, Dispatched]]:
    dispatched = Dispatched()
    new_blocks = NewBlocks(fleet.site, poll_s, anything_to_claim, dispatched, url)
    new_blocks.start()
    try:
        yield new_blocks, dispatched
    finally:
        new_blocks.close()
        # its statements are none of the next test's
        new_blocks._thread.join(deadline(PATIENCE_S))


def told(logged: Entries) -> list[object]:
    names = ("new_blocks_polled", "new_blocks_announced")
    return [entry["event"] for entry in logged if entry["event"] in names]


def until(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, what, PATIENCE_S, 0.02)


def relied_on(fleet: ChainHarness, chain: Chain) -> None:
    """Blocks are mined until their announcements are relied on."""

    def live() -> bool:
        chain.mine()
        return fleet.site.chain.heads.live

    until(live, "announcements to be relied on")


def test_poll__no_subscription__dispatches_the_claim_for_a_new_job(
    fleet: ChainHarness, chain: Chain, provider: Account
) -> None:
    with watching(fleet, OFTEN_S, None) as (_, dispatched):
        until(
            lambda: (
                fleet.site.ledger.periodic_runs.age_s(finished_key("claim")) is not None
            ),
            "a look",
        )
        assert dispatched.tasks == []
        scheduled_jobs(chain, provider, 1)
        until(lambda: "claim" in dispatched.tasks, "the claim to be dispatched")


def test_poll__claims_are_paused_while_a_job_waits__dispatches_nothing(
    fleet: ChainHarness, chain: Chain, provider: Account, logged: Entries
) -> None:
    dispatched = Dispatched()
    new_blocks = NewBlocks(fleet.site, 0.0, anything_to_claim, dispatched)
    scheduled_jobs(chain, provider, 1)
    fleet.site.ledger.switches.set(Switch.CLAIMING_PAUSED)
    for _ in range(3):
        new_blocks.poll()
    reasons = [entry["because"] for entry in logged if entry["event"] == "not_claiming"]
    assert (dispatched.tasks, reasons) == ([], [Switch.CLAIMING_PAUSED])
    fleet.site.ledger.switches.unset(Switch.CLAIMING_PAUSED)
    new_blocks.poll()
    assert dispatched.tasks == ["claim"]


def test_look__at_a_new_head__is_in_the_ledger_without_a_statement_of_its_own(
    fleet: ChainHarness, chain: Chain, engine: Engine
) -> None:
    chain.mine()
    statements = list[str]()
    event.listen(
        engine, "before_cursor_execute", lambda *about: statements.append(about[2])
    )
    with watching(fleet, NEVER_S, None):
        until(
            lambda: (
                fleet.site.ledger.periodic_runs.age_s(finished_key("claim")) is not None
            ),
            "a look",
        )
    # the run `chain`, and the look's
    assert sum("INTO periodic_runs" in statement for statement in statements) == 1
    seen = Overview(engine, fleet.site.ledger.cluster).snapshot().head
    assert seen is not None
    assert seen.number == chain.block_number()


def test_look__that_finds_nothing_new__asks_the_ledger_only_what_it_needs(
    fleet: ChainHarness, engine: Engine
) -> None:
    anything_to_claim(fleet.site)  # records its runs, and what the contract permits
    statements = list[str]()
    event.listen(
        engine, "before_cursor_execute", lambda *about: statements.append(about[2])
    )
    assert not anything_to_claim(fleet.site).waiting
    # a run a second
    asked = [
        statement for statement in statements if "INTO periodic_runs" not in statement
    ]
    assert len(asked) == 3, asked  # for the alarms, what is open, the facts


def test_anything_to_claim__alarm_of_a_retired_contract__is_off_at_the_next_look(
    fleet: ChainHarness,
) -> None:
    anything_to_claim(fleet.site)
    fleet.site.ledger.alarms.on(AlarmName.CONTRACT_RETIRED)
    anything_to_claim(fleet.site)
    assert fleet.site.ledger.alarms.all() == []


def test_subscription__a_new_block_and_no_polling__dispatches_the_claim(
    fleet: ChainHarness, chain: Chain, provider: Account, proxy: Proxy
) -> None:
    with watching(fleet, NEVER_S, f"ws://{proxy.address}") as (_, dispatched):
        relied_on(fleet, chain)
        scheduled_jobs(chain, provider, 1)
        until(lambda: "claim" in dispatched.tasks, "the claim to be dispatched")


@pytest.mark.parametrize("lies", [False, True])
def test_subscription__blocks_without_a_log__are_looked_at_every_few_seconds(
    fleet: ChainHarness, chain: Chain, engine: Engine, proxy: Proxy, lies: bool
) -> None:
    """Also if a log of a block was announced that the chain has not made."""
    looks_s = list[float]()

    def note(*about: object) -> None:
        if "INTO periodic_runs" in str(about[2]):  # one of each look
            looks_s.append(time.monotonic())

    with watching(fleet, NEVER_S, f"ws://{proxy.address}") as (new_blocks, _):
        relied_on(fleet, chain)
        if lies:
            new_blocks.log(FAR_OFF)
        event.listen(engine, "before_cursor_execute", note)

        def looked() -> bool:
            chain.mine()
            return len(looks_s) >= 3

        until(looked, "three looks")
        event.remove(engine, "before_cursor_execute", note)
    assert (
        min(later - earlier for earlier, later in pairwise(looks_s))
        >= QUIET_S - PAUSE_S
    )


def test_subscription__a_log_of_a_job_of_ours__dispatches_the_scan(
    fleet: ChainHarness, chain: Chain, provider: Account, proxy: Proxy
) -> None:
    other = chain.new_account()
    chain.register_provider(other, [ChainNode(2, 32, 64_000)], ChainPrices())
    with watching(fleet, NEVER_S, f"ws://{proxy.address}") as (_, dispatched):
        relied_on(fleet, chain)
        scheduled_jobs(chain, other, 1)
        chain.send(other, "MetaScheduler", "claimNextJob")
        relied_on(fleet, chain)
        assert "scan" not in dispatched.tasks  # another provider's
        scheduled_jobs(chain, provider, 1)
        chain.send(provider, "MetaScheduler", "claimNextJob")
        until(lambda: "scan" in dispatched.tasks, "the scan to be dispatched")


def test_look_at_logs__of_our_own_transaction__leaves_it_to_the_receipt(
    fleet: ChainHarness, chain: Chain, provider: Account
) -> None:
    dispatched = Dispatched()
    new_blocks = NewBlocks(fleet.site, NEVER_S, anything_to_claim, dispatched)
    scheduled_jobs(chain, provider, 2)
    fleet.writer.send([Write("claim:one", "claim", CLAIM.encode(), gas=GAS)])
    wait_for_receipts(fleet)
    announce_logs(new_blocks, fleet)
    assert dispatched.tasks == []
    fleet.follow()
    assert fleet.site.ledger.count_in_states([State.CLAIMED]) == 1
    # with our key, and by none of our transactions
    chain.send(provider, "MetaScheduler", "claimNextJob")
    announce_logs(new_blocks, fleet)
    assert dispatched.tasks == ["scan"]


def announce_logs(new_blocks: NewBlocks, fleet: ChainHarness) -> None:
    """As a subscription does with the logs of the last block."""
    contract = fleet.site.chain.contract
    head = int(contract.rpc.call("eth_blockNumber"), 16)
    method, params = contract.logs_call(head, head)
    entries = contract.rpc.call(method, *params)
    assert entries
    for entry in entries:
        new_blocks.log(entry)
    new_blocks.look_at_logs()


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.REFUSE, Fault.LOSE_TO_CLIENT])
def test_subscription__silent_or_cut__polling_takes_over_and_is_told_once_each_way(
    fleet: ChainHarness,
    chain: Chain,
    provider: Account,
    proxy: Proxy,
    fault: Fault,
    logged: Entries,
) -> None:
    """The RPC endpoint goes on: it is asked directly."""
    with watching(fleet, OFTEN_S, f"ws://{proxy.address}") as (_, dispatched):
        relied_on(fleet, chain)
        until(
            lambda: told(logged) == ["new_blocks_announced"],
            "the log to say that, a moment later",
        )
        proxy.fault(fault)
        scheduled_jobs(chain, provider, 1)
        until(lambda: "claim" in dispatched.tasks, "a poll to find it")

        def polled() -> bool:
            chain.mine()
            return told(logged)[-1] == "new_blocks_polled"

        until(polled, "the log to say so")
        proxy.fault(None)
        if fault is Fault.LOSE_TO_CLIENT:
            proxy.fault(Fault.CUT)  # what was lost leaves a stream that cannot be read
        relied_on(fleet, chain)
        in_turns = ["new_blocks_announced", "new_blocks_polled", "new_blocks_announced"]
        until(lambda: told(logged) == in_turns, "the log to say that")


def test_subscription__to_another_chain__is_refused_and_told(
    fleet: ChainHarness,
    chain: Chain,
    provider: Account,
    processes: Processes,
    logged: Entries,
) -> None:
    port = free_port()
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
    environment = {**os.environ, "HOME": str(processes.folder)}
    processes.start(
        "another chain", command, env=environment, ready=lambda: answers(port)
    )
    with watching(fleet, OFTEN_S, f"ws://127.0.0.1:{port}") as (_, dispatched):
        until(
            lambda: any(
                entry["event"] == "subscription_serves_another_chain"
                for entry in logged
            ),
            "the log to say so",
        )
        scheduled_jobs(chain, provider, 1)
        until(lambda: "claim" in dispatched.tasks, "a poll to find it")
        assert not fleet.site.chain.heads.live


def test_look__endpoint_lags_behind_an_announcement__is_repeated_until_it_shows(
    chain: Chain, provider: Account, engine: Engine, proxy: Proxy
) -> None:
    """The RPC endpoint is behind the proxy here, and the subscription is not."""
    fleet = ChainHarness.of(
        chain, provider, engine, Rpc.at(f"http://{proxy.address}", deadline(1.0))
    )
    with watching(fleet, OFTEN_S, chain.ws_url) as (_, dispatched):
        relied_on(fleet, chain)
        proxy.fault(Fault.REFUSE)
        scheduled_jobs(chain, provider, 1)
        proxy.fault(None)
        until(lambda: "claim" in dispatched.tasks, "the claim to be dispatched")
