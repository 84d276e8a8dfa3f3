"""One cluster of a site is down for a minute: the other settles 100 jobs, handed in
through the whole minute, as fast as alone, and its figures hold only its own.
"""

import json
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from devgrid import REPOSITORY
from devgrid.chain.model import Account
from devgrid.cluster.cluster import GridCluster
from devgrid.faults.network_proxy import Fault, Proxy
from devgrid.grid import Grid
from devgrid.options import ClusterOptions, GridOptions
from devgrid.ports import free_port
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.cluster_figures import wait_for_own_figures
from tests.support.grids import BLOCK_TIME_S

pytestmark = pytest.mark.chaos  # minutes; e2e/test_two_clusters.py has the quick tests

BATCHES, BATCH = 5, 20  # 100 jobs
OUTAGE_S = 60.0
SETTLED_WITHIN_S = 300.0
# The figures of one run are compared with each other: the machine is the same, its
# other load is not.
ALONE_RUNS = 2
RECORD = REPOSITORY / "build" / "cluster-outages.json"


@dataclass(frozen=True, slots=True)
class Bound:
    """How much longer than the slowest of the figures alone one may take."""

    times: float
    margin_s: float

    def after(self, alone_s: float) -> float:
        return self.times * alone_s + self.margin_s


OF_A_BATCH = Bound(1.3, 1.0)
OF_THE_MEDIAN = Bound(1.2, 1.0)


@dataclass
class Site:
    """Two clusters. The second reaches the chain through a proxy that can fail.
    `seconds` has the time of each batch, by the name of the run.
    """

    grid: Grid
    rpc: Proxy
    customer: Account
    metrics_port: int
    handed_in: list[str] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    load: dict[str, float] = field(default_factory=dict)

    @property
    def healthy(self) -> GridCluster:
        return self.grid.clusters[0]

    @property
    def broken(self) -> GridCluster:
        return self.grid.clusters[1]

    def submit(self, cluster: GridCluster, number: int) -> list[str]:
        job_ids = self.grid.submit_scripts(
            self.customer, "#!/bin/bash\ntrue\n", number, on=cluster
        )
        if cluster is self.healthy:
            self.handed_in += job_ids
        return job_ids

    def settle(self, name: str) -> list[float]:
        """Hand in a batch to the healthy cluster every 12 s of a minute. Returns for
        each the seconds from the request until its last job has ended on the contract.
        """
        begun_s = time.monotonic()
        self.seconds[name] = []
        for number in range(BATCHES):
            due_s = begun_s + number * OUTAGE_S / BATCHES
            time.sleep(max(due_s - time.monotonic(), 0.0))  # spread over the minute
            batch_s = time.monotonic()
            self.wait_for_end(self.submit(self.healthy, BATCH))
            self.seconds[name].append(round(time.monotonic() - batch_s, 1))
        self.load[name] = round(os.getloadavg()[0], 1)
        self._record()
        return self.seconds[name]

    def alone(self) -> list[list[float]]:
        """The times of the batches of each run in which no cluster was down."""
        return [
            seconds
            for name, seconds in self.seconds.items()
            if name.startswith("alone")
        ]

    def wait_for_end(self, job_ids: list[str]) -> None:
        wait_until(
            lambda: self.ended(job_ids) == len(job_ids),
            f"{len(job_ids)} jobs to end",
            SETTLED_WITHIN_S,
            0.1,
        )
        assert {job.status for job in self.grid.chain.jobs(job_ids)} == {
            ChainStatus.FINISHED
        }

    def ended(self, job_ids: list[str]) -> int:
        """How many of these jobs have ended on the contract."""
        return sum(job.status.is_final for job in self.grid.chain.jobs(job_ids))

    def _record(self) -> None:
        RECORD.parent.mkdir(exist_ok=True)
        record = {
            "jobs": BATCHES * BATCH,
            "batches": BATCHES,
            "outage_s": OUTAGE_S,
            "seconds": self.seconds,
            "load": self.load,
        }
        RECORD.write_text(json.dumps(record, indent=1) + "\n")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    grid = Grid.start(
        GridOptions(
            block_time_s=BLOCK_TIME_S, others=(ClusterOptions(name="second", nodes=2),)
        )
    )
    try:
        with Proxy.start(grid.chain.rpc_url.removeprefix("http://")) as rpc:
            settings = grid.clusters[1].environment
            settings["METASCHEDULER_ENDPOINT_RPC"] = f"http://{rpc.address}"
            settings["METASCHEDULER_ENDPOINT_WS"] = f"ws://{rpc.address}"
            for cluster in grid.clusters:
                cluster.fleet.start(flower=False)
            site = Site(grid, rpc, grid.new_customer(), free_port())
            site.healthy.fleet.start_metrics(site.metrics_port)
            for cluster in grid.clusters:
                # so that connections are open and code is loaded
                site.wait_for_end(site.submit(cluster, BATCH))
            for number in range(ALONE_RUNS):
                site.settle(f"alone {number + 1}")
            yield site
    finally:
        grid.stop()


Begin = Callable[[Site], Callable[[], None]]


def killed(part: str) -> Begin:
    """A part of the second cluster dies, and is started again at the end."""

    def begin(site: Site) -> Callable[[], None]:
        processes = site.broken.processes
        processes.kill(processes.find(part))
        return lambda: _started_again(site, part)

    return begin


def _started_again(site: Site, part: str) -> None:
    site.broken.processes.start_again(part)


def _login_node_dies(site: Site) -> Callable[[], None]:
    """With its sessions: they outlive an sshd that dies, and the worker uses them."""
    processes = site.broken.processes
    sshd = processes.find("sshd")
    processes.signal_tree(sshd, signal.SIGKILL)
    processes.kill(sshd)
    return lambda: _started_again(site, "sshd")


def _rpc_hangs(site: Site) -> Callable[[], None]:
    site.rpc.fault(Fault.HANG)
    return lambda: site.rpc.fault(None)


OUTAGES: dict[str, Begin] = {
    "slurmctld": killed("slurmctld"),
    "sshd": _login_node_dies,
    "worker": killed("worker"),
    "rpc": _rpc_hangs,
}


@contextmanager
def outage(site: Site, begin: Begin) -> Iterator[None]:
    """Inside this, the outage lasts, and for a minute at least."""
    begun_s, end = time.monotonic(), begin(site)
    try:
        yield
        time.sleep(max(begun_s + OUTAGE_S - time.monotonic(), 0.0))  # the outage itself
    finally:
        end()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", OUTAGES)
def test_cluster__outage_of_the_other_one__is_as_fast_as_alone(
    site: Site, name: str
) -> None:
    with outage(site, OUTAGES[name]):
        stuck = site.submit(site.broken, 5)
        took_s = site.settle(name)
        wait_for_own_figures(site.healthy, site.metrics_port, site.handed_in)
        assert site.ended(stuck) == 0  # the other cluster is down
    alone = site.alone()
    assert max(took_s) <= OF_A_BATCH.after(max(map(max, alone))), site.seconds
    of_median_s = OF_THE_MEDIAN.after(max(map(statistics.median, alone)))
    assert statistics.median(took_s) <= of_median_s, site.seconds
    site.wait_for_end(stuck)
