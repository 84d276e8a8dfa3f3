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
from devgrid.chain.deployment import ANVIL
from devgrid.chain.model import Account
from devgrid.faults.network_proxy import Fault, Proxy
from devgrid.machine import deadline
from devgrid.ports import free_port
from devgrid.processes import Processes, answers, wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.contract import CLAIM
from supervisor_tasks.chain.rpc.client import Rpc
from supervisor_tasks.indexer.new_blocks import PAUSE_S, QUIET_S, NewBlocks
from supervisor_tasks.jobs.claim import look_at_queues
from supervisor_tasks.jobs.model import State
from supervisor_tasks.ledger.periodic_run_names import finished_key
from supervisor_tasks.ledger.status_queries import Overview
from supervisor_tasks.ledger.switch_names import Switch
from supervisor_tasks.wallet.transaction_writer import Write
from tests.support.wallet_harness import (
    GAS,
    ChainHarness,
    registered,
    scheduled_jobs,
    wait_for_receipts,
)

PATIENCE_S = 10.0
NEVER_S = 600.0  # between two looks: only what was announced can have been the cause
OFTEN_S = 0.2
FAR_OFF = {"blockNumber": hex(10**9), "address": "0x" + "0" * 40, "topics": []}


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
    harness: ChainHarness, poll_s: float, url: str | None
) -> Iterator[tuple[NewBlocks, Dispatched]]:
    dispatched = Dispatched()
    new_blocks = NewBlocks(harness.site, poll_s, look_at_queues, dispatched, url)
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


def relied_on(harness: ChainHarness, chain: Chain) -> None:
    """Blocks are mined until their announcements are relied on."""

    def live() -> bool:
        chain.mine()
        return harness.site.chain.heads.live

    until(live, "announcements to be relied on")


def test_poll__no_subscription__dispatches_the_claim_for_a_new_job(
    harness: ChainHarness, chain: Chain, provider: Account
) -> None:
    with watching(harness, OFTEN_S, None) as (_, dispatched):
        until(
            lambda: (
                harness.site.ledger.periodic_runs.age_s(finished_key("claim"))
                is not None
            ),
            "a look",
        )
        assert dispatched.tasks == []
        scheduled_jobs(chain, provider, 1)
        until(lambda: "claim" in dispatched.tasks, "the claim to be dispatched")


def test_poll__claims_are_paused_while_a_job_waits__dispatches_nothing(
    harness: ChainHarness, chain: Chain, provider: Account, logged: Entries
) -> None:
    dispatched = Dispatched()
    new_blocks = NewBlocks(harness.site, 0.0, look_at_queues, dispatched)
    scheduled_jobs(chain, provider, 1)
    harness.site.ledger.switches.set(Switch.CLAIMING_PAUSED)
    for _ in range(3):
        new_blocks.poll()
    reasons = [entry["because"] for entry in logged if entry["event"] == "not_claiming"]
    assert (dispatched.tasks, reasons) == ([], [Switch.CLAIMING_PAUSED])
    harness.site.ledger.switches.unset(Switch.CLAIMING_PAUSED)
    new_blocks.poll()
    assert dispatched.tasks == ["claim"]


def test_look__at_a_new_head__is_in_the_ledger_without_a_statement_of_its_own(
    harness: ChainHarness, chain: Chain, empty_database: Engine
) -> None:
    chain.mine()
    statements = list[str]()
    event.listen(
        empty_database,
        "before_cursor_execute",
        lambda *about: statements.append(about[2]),
    )
    with watching(harness, NEVER_S, None):
        until(
            lambda: (
                harness.site.ledger.periodic_runs.age_s(finished_key("claim"))
                is not None
            ),
            "a look",
        )
    # the run `chain`, and the look's
    assert sum("INTO periodic_runs" in statement for statement in statements) == 1
    seen = Overview(empty_database, harness.site.ledger.cluster).snapshot().head
    assert seen is not None
    assert seen.number == chain.block_number()


def test_look__that_finds_nothing_new__asks_the_ledger_only_what_it_needs(
    harness: ChainHarness, empty_database: Engine
) -> None:
    look_at_queues(harness.site)  # records its runs, and what the contract permits
    statements = list[str]()
    event.listen(
        empty_database,
        "before_cursor_execute",
        lambda *about: statements.append(about[2]),
    )
    assert not look_at_queues(harness.site).waiting
    # a run a second
    asked = [
        statement for statement in statements if "INTO periodic_runs" not in statement
    ]
    assert len(asked) == 3, asked  # for the alarms, what is open, the facts


def test_look_at_queues__alarm_of_a_retired_contract__is_off_at_the_next_look(
    harness: ChainHarness,
) -> None:
    look_at_queues(harness.site)
    harness.site.ledger.alarms.on(AlarmName.CONTRACT_RETIRED)
    look_at_queues(harness.site)
    assert harness.site.ledger.alarms.all() == []


def test_subscription__a_new_block_and_no_polling__dispatches_the_claim(
    harness: ChainHarness, chain: Chain, provider: Account, proxy: Proxy
) -> None:
    with watching(harness, NEVER_S, f"ws://{proxy.address}") as (_, dispatched):
        relied_on(harness, chain)
        scheduled_jobs(chain, provider, 1)
        until(lambda: "claim" in dispatched.tasks, "the claim to be dispatched")


@pytest.mark.parametrize("lies", [False, True])
def test_subscription__blocks_without_a_log__are_looked_at_every_few_seconds(
    harness: ChainHarness,
    chain: Chain,
    empty_database: Engine,
    proxy: Proxy,
    lies: bool,
) -> None:
    """Also if a log of a block was announced that the chain has not made."""
    looks_s = list[float]()

    def note(*about: object) -> None:
        if "INTO periodic_runs" in str(about[2]):  # one of each look
            looks_s.append(time.monotonic())

    with watching(harness, NEVER_S, f"ws://{proxy.address}") as (new_blocks, _):
        relied_on(harness, chain)
        if lies:
            new_blocks.log(FAR_OFF)
        event.listen(empty_database, "before_cursor_execute", note)

        def looked() -> bool:
            chain.mine()
            return len(looks_s) >= 3

        until(looked, "three looks")
        event.remove(empty_database, "before_cursor_execute", note)
    assert (
        min(later - earlier for earlier, later in pairwise(looks_s))
        >= QUIET_S - PAUSE_S
    )


def test_subscription__a_log_of_a_job_of_ours__dispatches_the_scan(
    harness: ChainHarness, chain: Chain, provider: Account, proxy: Proxy
) -> None:
    other = registered(chain)
    with watching(harness, NEVER_S, f"ws://{proxy.address}") as (_, dispatched):
        relied_on(harness, chain)
        scheduled_jobs(chain, other, 1)
        chain.send(other, "MetaScheduler", "claimNextJob")
        relied_on(harness, chain)
        assert "scan" not in dispatched.tasks  # another provider's
        scheduled_jobs(chain, provider, 1)
        chain.send(provider, "MetaScheduler", "claimNextJob")
        until(lambda: "scan" in dispatched.tasks, "the scan to be dispatched")


def test_look_at_logs__of_our_own_transaction__leaves_it_to_the_receipt(
    harness: ChainHarness, chain: Chain, provider: Account
) -> None:
    dispatched = Dispatched()
    new_blocks = NewBlocks(harness.site, NEVER_S, look_at_queues, dispatched)
    scheduled_jobs(chain, provider, 2)
    harness.writer.send([Write("claim:one", "claim", CLAIM.encode(), gas=GAS)])
    wait_for_receipts(harness)
    announce_logs(new_blocks, harness)
    assert dispatched.tasks == []
    harness.follow()
    assert harness.site.ledger.count_in_states([State.CLAIMED]) == 1
    # with our key, and by none of our transactions
    chain.send(provider, "MetaScheduler", "claimNextJob")
    announce_logs(new_blocks, harness)
    assert dispatched.tasks == ["scan"]


def announce_logs(new_blocks: NewBlocks, harness: ChainHarness) -> None:
    """As a subscription does with the logs of the last block."""
    contract = harness.site.chain.contract
    head = int(contract.rpc.call("eth_blockNumber"), 16)
    method, params = contract.logs_call(head, head)
    entries = contract.rpc.call(method, *params)
    assert entries
    for entry in entries:
        new_blocks.log(entry)
    new_blocks.look_at_logs()


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.REFUSE, Fault.LOSE_TO_CLIENT])
def test_subscription__silent_or_cut__polling_takes_over_and_is_told_once_each_way(
    harness: ChainHarness,
    chain: Chain,
    provider: Account,
    proxy: Proxy,
    fault: Fault,
    logged: Entries,
) -> None:
    """The RPC endpoint goes on: it is asked directly."""
    with watching(harness, OFTEN_S, f"ws://{proxy.address}") as (_, dispatched):
        relied_on(harness, chain)
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
        relied_on(harness, chain)
        in_turns = ["new_blocks_announced", "new_blocks_polled", "new_blocks_announced"]
        until(lambda: told(logged) == in_turns, "the log to say that")


def test_subscription__to_another_chain__is_refused_and_told(
    harness: ChainHarness,
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
    with watching(harness, OFTEN_S, f"ws://127.0.0.1:{port}") as (_, dispatched):
        until(
            lambda: any(
                entry["event"] == "subscription_serves_another_chain"
                for entry in logged
            ),
            "the log to say so",
        )
        scheduled_jobs(chain, provider, 1)
        until(lambda: "claim" in dispatched.tasks, "a poll to find it")
        assert not harness.site.chain.heads.live


def test_look__endpoint_lags_behind_an_announcement__is_repeated_until_it_shows(
    chain: Chain, provider: Account, empty_database: Engine, proxy: Proxy
) -> None:
    """The RPC endpoint is behind the proxy here, and the subscription is not."""
    harness = ChainHarness.of(
        chain,
        provider,
        empty_database,
        Rpc.at(f"http://{proxy.address}", deadline(1.0)),
    )
    with watching(harness, OFTEN_S, chain.ws_url) as (_, dispatched):
        relied_on(harness, chain)
        proxy.fault(Fault.REFUSE)
        scheduled_jobs(chain, provider, 1)
        proxy.fault(None)
        until(lambda: "claim" in dispatched.tasks, "the claim to be dispatched")
