"""What shows that another ledger's fleet is active, on a real chain and a real Postgres."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, text

from devgrid.chain.chain import Chain
from devgrid.chain.model import Account
from devgrid.ports import free_port
from devgrid.processes import Processes
from supervisor_tasks.chain.blocks import seconds_since
from supervisor_tasks.chain.rpc.client import Rpc
from supervisor_tasks.ledger.ledger import Ledger
from supervisor_tasks.ledger.periodic_run_names import finished_key
from supervisor_tasks.ledger.transactions import TransactionStore
from supervisor_tasks.recovery.fleet_liveness import WROTE_WITHIN_S, liveness_evidence
from tests.support.wallet_harness import (
    ChainHarness,
    claims,
    databases,
    registered,
    scheduled_jobs,
    wait_for_receipts,
)

UNKNOWN = b"\x07" * 8


@pytest.fixture(scope="module")
def engines(processes: Processes) -> Iterator[list[Engine]]:
    with databases(processes, "one", "two") as made:
        yield made


@pytest.fixture(scope="module")
def provider(chain: Chain) -> Account:
    return registered(chain)


def evidence(chain: Chain, engine: Engine, address: str, tag: bytes) -> list[str]:
    return liveness_evidence(engine, "here", Rpc.at(chain.rpc_url), address, tag)


def test_liveness_evidence__it_wrote_on_chain_lately__is_seen_by_its_tag(
    chain: Chain, engines: list[Engine], provider: Account
) -> None:
    one, two = engines
    scheduled_jobs(chain, provider, 1)
    other = ChainHarness.of(chain, provider, one)
    other.writer.send(claims(1))
    wait_for_receipts(other)
    tag, address = (
        TransactionStore(one, "here", chain.chain_id).instance_tag(),
        other.account.address,
    )
    (fact,) = evidence(chain, two, address, tag)
    assert fact.startswith("it wrote on chain ")
    assert evidence(chain, two, address, UNKNOWN) == []
    assert evidence(chain, two, chain.new_account().address, tag) == []
    block = chain.block_number()
    chain.rpc.call("evm_increaseTime", WROTE_WITHIN_S + 5)
    chain.mine()
    assert evidence(chain, two, address, tag) == []
    # which is how far back accounting is asked
    assert seconds_since(Rpc.at(chain.rpc_url), block) > WROTE_WITHIN_S


def test_liveness_evidence__chain_does_not_answer__is_one(
    engines: list[Engine],
) -> None:
    nowhere = Rpc.at(f"http://127.0.0.1:{free_port()}")
    (fact,) = liveness_evidence(engines[1], "here", nowhere, "0x1", UNKNOWN)
    assert fact.startswith("the chain cannot be looked at")


def test_liveness_evidence__a_cluster_of_the_same_database__by_its_runs(
    chain: Chain, engines: list[Engine]
) -> None:
    two = engines[1]
    tag = TransactionStore(two, "there", chain.chain_id).instance_tag()
    assert evidence(chain, two, "0x1", tag) == []
    Ledger(two, "there", lambda _: None).periodic_runs.record(
        finished_key("dispatch_due_effects")
    )
    (fact,) = evidence(chain, two, "0x1", tag)
    assert "the cluster 'there' of this database" in fact
    with two.begin() as connection:
        connection.execute(
            text("UPDATE periodic_runs SET succeeded_at = now() - interval '2 minutes'")
        )
    assert evidence(chain, two, "0x1", tag) == []


def test_liveness_evidence__fleet_at_another_database_of_the_server__is_connected(
    chain: Chain, engines: list[Engine]
) -> None:
    one, two = engines
    fleet = create_engine(
        one.url, connect_args={"application_name": "supervisor 0123456789abcdef"}
    )
    with fleet.connect():
        (fact,) = evidence(chain, two, "0x1", UNKNOWN)
        assert "the database 'one' of this server (1 connections)" in fact
    fleet.dispose()
