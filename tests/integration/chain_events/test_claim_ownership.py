"""Whose claim it is, and whose nonce, where two clusters of a ledger share a wallet, on a
real chain and a real Postgres.
"""

from collections.abc import Collection

import pytest
from sqlalchemy import Engine, text

from devgrid.chain.chain import Chain
from devgrid.chain.model import Account
from devgrid.processes import wait_until
from supervisor_tasks.indexer.scan import scan
from supervisor_tasks.jobs.claim import claim
from supervisor_tasks.jobs.model import JobId
from supervisor_tasks.ledger.periodic_run_names import SCANNED
from supervisor_tasks.wallet.transaction_writer import WalletEmptyError
from tests.support.wallet_harness import (
    ChainHarness,
    claims,
    held,
    scheduled_jobs,
    wait_for_receipts,
)

CLUSTERS = ("east", "west")
TAG = b"\x07" * 8  # of a ledger that is lost


@pytest.fixture
def partners(
    chain: Chain, provider: Account, empty_database: Engine
) -> list[ChainHarness]:
    """Two clusters that share a wallet, and have read all blocks."""
    made = [
        ChainHarness.of(chain, provider, empty_database, cluster=name)
        for name in CLUSTERS
    ]
    for one in made:
        hold(one)
        scan(one.site)
    return made


def hold(one: ChainHarness) -> None:
    """As a worker with the wallet's key does at its start, and each time that it has
    read the chain.
    """
    one.site.ledger.wallets.hold(one.chain.chain_id, one.account.address, shared=True)
    one.site.ledger.periodic_runs.record(SCANNED)


def end_fleet(one: ChainHarness) -> None:
    """Have a fleet count as ended: it has not read the chain for long."""
    with one.engine.begin() as connection:
        connection.execute(
            text("DELETE FROM periodic_runs WHERE cluster = :cluster"),
            {"cluster": one.site.ledger.cluster},
        )


def settle(partners: Collection[ChainHarness]) -> None:
    """Have each read its receipts."""
    for one in partners:
        wait_until(lambda one=one: not one.follow(), "all to be closed", 60.0, 0.1)  # type: ignore[misc]


def owned(
    partners: Collection[ChainHarness], job_ids: Collection[JobId]
) -> list[set[JobId]]:
    """The jobs that each has after it has read the chain."""
    for one in partners:
        scan(one.site)
    return [set(one.site.ledger.jobs(job_ids)) for one in partners]


def test_scan__clusters_that_share_a_wallet__each_job_is_that_of_its_claim(
    chain: Chain, provider: Account, partners: list[ChainHarness]
) -> None:
    job_ids = scheduled_jobs(chain, provider, 5)
    for one, number in zip(partners, (2, 3), strict=True):
        one.writer.send(claims(number))
        wait_for_receipts(one)
    east, west = owned(partners, job_ids)
    assert (len(east), len(west), east | west) == (2, 3, set(job_ids))
    settle(partners)
    assert owned(partners, job_ids) == [east, west]
    assert [one.alarms() for one in partners] == [set(), set()]


def test_scan__ledger_of_partners_was_restored__their_tags_tell_whose_claim_it_is(
    chain: Chain, provider: Account, partners: list[ChainHarness]
) -> None:
    job_ids = scheduled_jobs(chain, provider, 5)
    for one, number in zip(partners, (2, 3), strict=True):
        one.writer.send(claims(number))
        wait_for_receipts(one)
    with partners[0].engine.begin() as connection:  # the backup was made before
        connection.execute(text("TRUNCATE transactions, signatures"))
    east, west = owned(partners, job_ids)
    assert (len(east), len(west), east | west) == (2, 3, set(job_ids))
    assert [one.alarms() for one in partners] == [set(), set()]


def test_scan__claim_made_by_hand_with_a_shared_wallet__is_the_first_clusters(
    chain: Chain, provider: Account, partners: list[ChainHarness]
) -> None:
    job_ids = scheduled_jobs(chain, provider, 1)
    chain.send(provider, "MetaScheduler", "claimNextJob")
    assert owned(partners, job_ids) == [set(job_ids), set()]


def test_scan__lost_ledger_that_a_partner_took_over__its_claims_are_that_partners(
    chain: Chain, provider: Account, partners: list[ChainHarness]
) -> None:
    east, west = partners
    west.site.ledger.foreign_claims.adopt_tag(TAG)
    job_ids = scheduled_jobs(chain, provider, 1)
    with east.engine.begin() as connection:
        stored = text("UPDATE instance_tags SET tag = :tag WHERE cluster = 'east'")
        own = east.account.transactions.instance_tag()
        connection.execute(stored, {"tag": TAG})
    lost = ChainHarness.of(chain, provider, east.engine, cluster="east")
    lost.writer.send(claims(1))
    wait_for_receipts(lost)
    with east.engine.begin() as connection:
        connection.execute(stored, {"tag": own})
        connection.execute(text("TRUNCATE transactions, signatures"))
    assert owned(partners, job_ids) == [set(), set(job_ids)]
    assert east.alarms() == set()


def test_scan__cluster_that_gave_up_the_wallet__its_claims_are_the_others(
    chain: Chain, provider: Account, partners: list[ChainHarness]
) -> None:
    """An operator who has renamed a cluster releases the wallet of the former one."""
    east, west = partners
    job_ids = scheduled_jobs(chain, provider, 1)
    west.writer.send(claims(1))
    wait_for_receipts(west)
    west.site.ledger.wallets.release()
    assert owned([east], job_ids) == [set(job_ids)]


def test_scan__claim_by_hand_and_a_new_first_cluster__stays_where_it_runs(
    chain: Chain, provider: Account, partners: list[ChainHarness]
) -> None:
    east = partners[0]
    job_ids = scheduled_jobs(chain, provider, 1)
    chain.send(provider, "MetaScheduler", "claimNextJob")
    alpha = ChainHarness.of(chain, provider, east.engine, cluster="alpha")
    assert owned(partners, job_ids) == [set(job_ids), set()]
    hold(alpha)
    assert owned([alpha], job_ids) == [set()]
    assert alpha.alarms() == set()


def test_scan__cluster_that_gave_up_the_wallet__one_of_the_others_has_its_claim(
    chain: Chain, provider: Account, partners: list[ChainHarness]
) -> None:
    """Two others are left: the renamed one and a partner that was down meanwhile."""
    east, west = partners
    job_ids = scheduled_jobs(chain, provider, 1)
    west.writer.send(claims(1))
    wait_for_receipts(west)
    assert owned([west], job_ids) == [set(job_ids)]
    west.site.ledger.wallets.release()
    north = ChainHarness.of(chain, provider, east.engine, cluster="north")
    hold(north)
    assert owned([north, east], job_ids) == [set(job_ids), set()]


def test_claim__the_partners_claims_are_under_way__claims_only_what_is_left(
    chain: Chain, provider: Account, partners: list[ChainHarness]
) -> None:
    east, west = partners
    job_ids = scheduled_jobs(chain, provider, 4)
    with held(chain):
        claim(east.site)
        claim(west.site)
    settle(partners)
    assert set(east.states()) == {"MINED"}
    assert [len(jobs) for jobs in owned(partners, job_ids)] == [4, 0]


@pytest.mark.parametrize("released", [False, True])
def test_claim__the_partner_ended_with_its_claim_open__claims_what_is_left(
    chain: Chain, provider: Account, partners: list[ChainHarness], released: bool
) -> None:
    """Only the partner's own fleet would read that its claim was mined."""
    east, west = partners
    first = scheduled_jobs(chain, provider, 1)
    west.writer.send(claims(1))
    wait_for_receipts(west)
    assert owned([west], first) == [set(first)]
    if released:  # the operator has renamed the cluster
        west.site.ledger.wallets.release()
    end_fleet(west)
    second = scheduled_jobs(chain, provider, 1)
    claim(east.site)
    settle([east])
    assert owned([east], second) == [set(second)]


def test_send__the_partner_has_sent_since_the_count__no_more_are_open_than_told(
    chain: Chain, provider: Account, partners: list[ChainHarness]
) -> None:
    east, west = partners
    scheduled_jobs(chain, provider, 4)
    with held(chain):
        east.writer.send(claims(3))
        assert west.writer.send(claims(4), most_open={"claim": 4}) == 1
        assert west.writer.send(claims(1), most_open={"claim": 4}) == 0
    settle(partners)
    assert east.states() == ["MINED"] * 4


def test_send__balance_pays_for_the_partners_writes_alone__nothing_is_signed(
    chain: Chain, provider: Account, partners: list[ChainHarness]
) -> None:
    east, west = partners
    scheduled_jobs(chain, provider, 2)
    with held(chain):
        east.writer.send(claims(1))
        (cost_wei,) = (gas * price for gas, price in east.rows("gas, max_fee_wei"))
        chain.rpc.call("anvil_setBalance", provider.address, hex(int(cost_wei * 3 / 2)))
        with pytest.raises(WalletEmptyError):
            west.writer.send(claims(1))
    settle(partners)
    assert east.states() == ["MINED"]


def test_follow__the_partner_died_before_it_sent__its_bytes_are_sent(
    chain: Chain, provider: Account, partners: list[ChainHarness]
) -> None:
    """Its nonce holds up all later ones."""
    east, west = partners
    job_ids = scheduled_jobs(chain, provider, 3)
    with held(chain):
        east.writer.send(claims(1))
        ((signed,),) = east.rows("hash")
        chain.rpc.call("anvil_dropTransaction", signed)
        west.writer.send(claims(2))
    with west.engine.begin() as connection:
        connection.execute(
            text("UPDATE signatures SET signed_at = now() - interval '1 minute'")
        )
    end_fleet(east)
    settle([west])
    settle([east])
    assert east.states() == ["MINED"] * 3
    assert [len(jobs) for jobs in owned(partners, job_ids)] == [1, 2]
    assert [one.alarms() for one in partners] == [set(), set()]
