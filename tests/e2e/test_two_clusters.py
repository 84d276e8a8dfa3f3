"""A site of two clusters: one ledger, one broker, one Flower; each has its SLURM, login
node, wallet, prices and fleet.
"""

import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from redis import Redis

from devgrid import REPOSITORY
from devgrid.chain.model import ChainPrices
from devgrid.cluster.cluster import GridCluster
from devgrid.fleet import CELERY, Fleet
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.options import ClusterOptions, GridOptions
from devgrid.ports import free_port
from devgrid.processes import answers, wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.cluster_figures import wait_for_own_figures
from tests.support.grid_assertions import rows, wait_for_end
from tests.support.grids import BLOCK_TIME_S
from tests.support.refusals import reasons

pytestmark = pytest.mark.extended

CHEAP = ChainPrices(
    gpu_wei_per_min=10**18, cpu_wei_per_min=10**17, mem_wei_per_min=10**13
)
SECOND = ClusterOptions(name="second", nodes=1, gpus_per_node=1, prices=CHEAP)
OUTAGE_S = 10.0
SCRIPT = "#!/bin/bash\necho $SLURM_CLUSTER_NAME\nsleep 1\n"
# What all workers of a broker share: events (Flower reads them), the questions of
# Flower, and when bindings expire.
COMMON_KEYS = re.compile(
    rb"_kombu\.binding(_permanent)?\.(celeryev|(reply\.)?celery\.pidbox)|_kombu\.binding_deadlines"
    rb"|celeryev\..*|.*\.(reply\.)?celery\.pidbox"
)


@dataclass(frozen=True)
class Site:
    """A grid of two clusters with their fleets; the first fleet has the Flower."""

    grid: Grid
    flower: Fleet

    @property
    def clusters(self) -> tuple[GridCluster, GridCluster]:
        first, second = self.grid.clusters
        return first, second


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    grid = Grid.start(
        GridOptions(
            block_time_s=BLOCK_TIME_S, nodes=1, gpus_per_node=1, others=(SECOND,)
        )
    )
    try:
        first, second = (cluster.fleet for cluster in grid.clusters)
        first.start(flower=True)
        second.start(flower=False)
        yield Site(grid, first)
    finally:
        grid.stop()


@pytest.fixture(scope="module")
def metrics_port(site: Site) -> int:
    """The port of the first cluster's metrics."""
    port = free_port()
    site.clusters[0].fleet.start_metrics(port)
    wait_until(lambda: answers(port), "the metrics to be served", 30.0)
    return port


def jobs_of(site: Site, cluster: GridCluster) -> list[Any]:
    query = "SELECT job_id FROM jobs WHERE cluster = :cluster"
    return rows(site.grid, query, cluster=cluster.name)


def test_two_clusters__jobs_by_label__each_runs_pays_and_shows_apart(
    site: Site,
) -> None:
    customer = site.grid.new_customer()
    wanted = {
        job_id: cluster
        for cluster in site.clusters
        for job_id in site.grid.submit_scripts(customer, SCRIPT, 2, on=cluster)
    }
    for job_id, cluster in wanted.items():
        job = wait_for_end(site.grid, job_id)
        assert job.status is ChainStatus.FINISHED
        assert job.provider == cluster.provider.address
        assert cluster.output(customer.address, job_id).strip() == cluster.name
    settled = rows(site.grid, "SELECT job_id, cluster, state FROM jobs")
    assert {row.job_id: row.cluster for row in settled} == {
        job_id: its.name for job_id, its in wanted.items()
    }
    assert (
        len(
            {
                row.address
                for row in rows(
                    site.grid, "SELECT address FROM transactions GROUP BY address"
                )
            }
        )
        == 2
    )
    first, second = (
        site.grid.chain.providers.get(cluster.provider.address)
        for cluster in site.clusters
    )
    assert (first.prices, second.prices) == (ChainPrices(), CHEAP)
    assert (dict(first.labels)["name"], dict(second.labels)["name"]) == (
        "devgrid",
        "second",
    )


def test_two_clusters__one_has_no_slurm__the_other_settles_and_shows_only_its_own(
    site: Site, metrics_port: int
) -> None:
    """chaos/test_cluster_outages.py has the other outages, and compares times."""
    customer = site.grid.new_customer()
    healthy, broken = site.clusters
    own = {row.job_id for row in jobs_of(site, healthy)}
    broken.processes.kill(broken.processes.find("slurmctld"))
    begun_s = time.monotonic()
    try:
        (stuck,) = site.grid.submit_scripts(customer, SCRIPT, 1, on=broken)
        while time.monotonic() - begun_s < OUTAGE_S:  # the outage itself
            handed_in = site.grid.submit_scripts(customer, SCRIPT, 3, on=healthy)
            for job_id in handed_in:
                job = wait_for_end(site.grid, job_id)
                assert job.status is ChainStatus.FINISHED
            own.update(handed_in)
        wait_for_own_figures(healthy, metrics_port, own)
        assert not site.grid.chain.job(stuck).status.is_final
    finally:
        broken.processes.start_again("slurmctld")
    assert wait_for_end(site.grid, stuck).status is ChainStatus.FINISHED


def test_two_clusters__one_flower__shows_the_workers_of_both(site: Site) -> None:
    def both() -> bool:
        shown = site.flower.shown_workers()
        clusters = {name.partition("-worker@")[0] for name in shown}
        return clusters >= {cluster.name for cluster in site.clusters}

    site.flower.wait_for_flower()
    wait_until(both, "Flower to show both clusters", 30.0, 0.2)


def test_two_clusters__one_broker__each_key_names_its_cluster(site: Site) -> None:
    broker = Redis.from_url(
        site.grid.environment["BROKER_URL"].replace("redis+socket", "unix")
    )
    try:
        keys = [bytes(key) for key in broker.scan_iter()]
    finally:
        broker.close()
    names = [cluster.name.encode() for cluster in site.clusters]
    strange = [key for key in keys if not COMMON_KEYS.fullmatch(key)]
    queues = (
        rb"(_kombu\.binding(_permanent)?\.)?(%s)\.(chain|slurm|default|benchmark)"
        % b"|".join(names)
    )
    assert [key for key in strange if not re.fullmatch(queues, key)] == []
    assert all(b"_kombu.binding." + name + b".default" in keys for name in names)


def worker_with(cluster: GridCluster, **settings: str) -> subprocess.Popen[str]:
    fleet = Fleet(cluster.processes, cluster.environment | settings)
    argv = [
        *CELERY,
        "worker",
        "--hostname",
        "third@%h",
        "-Q",
        f"{settings['CLUSTER_NAME']}.chain",
    ]
    return subprocess.Popen(
        argv,
        cwd=REPOSITORY,
        env=fleet.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_third_cluster__with_the_wallet_of_another__is_refused_by_name(
    site: Site,
) -> None:
    """Copied settings with a name of their own."""
    first, _ = site.clusters
    wallet = first.provider.address
    with worker_with(first, CLUSTER_NAME="third") as third:
        _, told = third.communicate(timeout=deadline(60))
    assert third.returncode == 2, told
    (last,) = reasons(told)
    assert last.startswith(
        f"ETH_PRIVATE_KEY: found the wallet {wallet} of chain {site.grid.chain.chain_id}, with which the"
    )
    assert "'devgrid'" in last
    assert "'third'" in last
    assert "ALLOW_CLUSTERS_TO_SHARE_A_WALLET=true" in last
    assert "Traceback" not in told
    assert {
        row.cluster for row in rows(site.grid, "SELECT cluster FROM wallet_holders")
    } == {"devgrid", "second"}
