"""Two clusters of a ledger that share one wallet, as the settings of both allow: each
job is one cluster's, and each nonce one transaction's.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from devgrid.cluster.cluster import FIRST_PROVIDER, PRICES, GridCluster
from devgrid.grid import Grid
from devgrid.options import ClusterOptions, GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.jobs.model import ChainStatus
from tests.support import chaos_jobs
from tests.support.grid_assertions import rows, wait_for_end
from tests.support.grids import BLOCK_TIME_S

pytestmark = pytest.mark.extended

# Sweeps come often, with a short grace: a sweep compares the contract's jobs of the
# wallet with those of its own cluster.
SETTINGS = {
    "ALLOW_CLUSTERS_TO_SHARE_A_WALLET": "true",
    "SWEEP_EVERY_S": "4",
    "SWEEP_GRACE_S": "3",
    "CLAIM_BATCH": "3",  # so that neither takes all at once
}
# what belongs to the provider, which is one for both
OF_PROVIDER = ("ETH_PRIVATE_KEY", "METASCHEDULER_LABELS", *PRICES)
# what a cluster would raise about the claims, transactions and jobs of the other one
OF_THE_OTHER = {
    AlarmName.FOREIGN_CLAIMS,
    AlarmName.UNKNOWN_TRANSACTION_ON_ACCOUNT,
    AlarmName.SWEEP_CONTRADICTION,
    AlarmName.FOREIGN_CUSTOMER_JOBS,
}
AT_ONCE = 12
EACH = 10
SWEEPS = 2


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    second = ClusterOptions(name="second", nodes=1, gpus_per_node=1, overrides=SETTINGS)
    grid = Grid.start(
        GridOptions(
            block_time_s=BLOCK_TIME_S,
            nodes=1,
            gpus_per_node=1,
            overrides=SETTINGS,
            others=(second,),
        )
    )
    try:
        share_wallet(*grid.clusters)
        for cluster in grid.clusters:
            cluster.fleet.start(flower=False)
        yield grid
    finally:
        grid.stop()


def share_wallet(first: GridCluster, second: GridCluster) -> None:
    """Give the second cluster the provider of the first one."""
    second.role = FIRST_PROVIDER
    second.environment |= {name: first.environment[name] for name in OF_PROVIDER}


def script(grid: Grid) -> str:
    """A script that records each of its runs with the cluster that it is on."""
    record = f'"{chaos_jobs.start_records(grid)}/$SLURM_JOB_NAME-$SLURM_CLUSTER_NAME-$SLURM_JOB_ID"'
    return f"#!/bin/bash\n: >{record}\nsleep 1\n"


def claimed(grid: Grid, cluster: GridCluster) -> set[str]:
    query = "SELECT job_id FROM jobs WHERE cluster = :cluster"
    return {row.job_id for row in rows(grid, query, cluster=cluster.name)}


def transactions(grid: Grid) -> list[Any]:
    query = "SELECT * FROM transactions WHERE address = :address ORDER BY nonce"
    return rows(grid, query, address=grid.cluster.provider.address)


def sweeps(grid: Grid, cluster: GridCluster) -> int:
    """How many sweeps of the cluster saw all sources."""
    whole = "SELECT count(*) AS n FROM reconciliations WHERE cluster = :cluster AND report->'unseen' = '{}'::jsonb"
    return int(rows(grid, whole, cluster=cluster.name)[0].n)


def blocks_of_reports(grid: Grid, cluster: str) -> list[int]:
    """The blocks that have the cluster's reports of finished jobs."""
    return [
        row.block_number
        for row in transactions(grid)
        if row.cluster == cluster
        and row.purpose == "report FINISHED"
        and row.block_number is not None
    ]


def side_by_side(grid: Grid) -> bool:
    """Whether each cluster reported a job before the other one's last report."""
    first, second = (blocks_of_reports(grid, cluster.name) for cluster in grid.clusters)
    return (
        bool(first and second) and min(first) < max(second) and min(second) < max(first)
    )


@pytest.fixture(scope="module")
def settled(grid: Grid) -> list[str]:
    """Jobs that both clusters have settled, side by side, and swept after. On a busy
    machine one cluster may settle a whole batch before the other one claims.
    """
    customer, job_ids = grid.new_customer(), list[str]()

    def both_settle_at_once() -> bool:
        batch = grid.submit_scripts(customer, script(grid), AT_ONCE, on=grid.cluster)
        job_ids.extend(batch)
        for job_id in batch:
            assert wait_for_end(grid, job_id, 120.0).status is ChainStatus.FINISHED
        claims = [len(claimed(grid, each)) for each in grid.clusters]
        return min(claims) >= EACH and side_by_side(grid)

    wait_until(both_settle_at_once, "both clusters to settle at once", 240.0, 1.0)
    before = [sweeps(grid, each) for each in grid.clusters]
    wait_until(
        lambda: all(
            sweeps(grid, each) >= seen + SWEEPS
            for each, seen in zip(grid.clusters, before, strict=True)
        ),
        "sweeps of both",
        60.0,
    )
    wait_until(
        lambda: all(row.done_at is not None for row in transactions(grid)),
        "all receipts to be read",
        60.0,
    )
    return job_ids


def test_shared_wallet__both_claim_at_once__each_job_is_one_clusters_and_runs_once(
    grid: Grid, settled: list[str]
) -> None:
    first, second = (claimed(grid, cluster) for cluster in grid.clusters)
    assert first & second == set()
    assert first | second == set(settled)
    runs = [
        tuple(record.name.split("-"))
        for record in chaos_jobs.start_records(grid).iterdir()
    ]
    assert {(job_id, cluster) for job_id, cluster, _ in runs} == {
        (job_id, cluster.name)
        for cluster in grid.clusters
        for job_id in claimed(grid, cluster)
    }
    assert len(runs) == len(settled)  # each once


def test_shared_wallet__both_settle_at_once__no_nonce_twice_and_none_lost(
    grid: Grid, settled: list[str]
) -> None:
    written = transactions(grid)
    address = grid.cluster.provider.address
    mined = int(grid.chain.rpc.call("eth_getTransactionCount", address, "latest"), 16)
    nonces = [row.nonce for row in written]
    assert nonces == list(range(nonces[0], mined))  # the first ones are devgrid's
    assert {row.state for row in written} <= {"MINED", "REVERTED"}
    assert side_by_side(grid)


def test_shared_wallet__after_a_sweep__no_alarm_is_about_the_other_cluster(
    grid: Grid, settled: list[str]
) -> None:
    def alarms() -> list[Any]:
        return rows(grid, "SELECT cluster, name, details FROM alarms")

    assert [alarm for alarm in alarms() if alarm.name in OF_THE_OTHER] == []
    assert rows(grid, "SELECT * FROM foreign_claims") == []
    # a busy machine may be late with a sweep or an answer
    wait_until(lambda: alarms() == [], "the other alarms to end", 60.0, 0.5)
