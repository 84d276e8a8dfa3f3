"""One cluster of a site is down for a minute: the other settles 100 jobs as fast as
alone.
"""

import json
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
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.grids import BLOCK_TIME_S

pytestmark = pytest.mark.chaos  # minutes; e2e/test_two_clusters.py has the quick tests

JOBS = 100
OUTAGE_S = 60.0
SETTLED_WITHIN_S = 300.0
# The figures of one run are compared with each other: the machine is the same, its
# other load is not.
ALONE_RUNS = 3
AS_FAST = 1.3  # times the slowest of the runs in which no cluster is down
MARGIN_S = 2.0
RECORD = REPOSITORY / "build" / "cluster-outages.json"


@dataclass
class Site:
    """Two clusters. The second reaches the chain through a proxy that can fail."""

    grid: Grid
    rpc: Proxy
    customer: Account
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def healthy(self) -> GridCluster:
        return self.grid.clusters[0]

    @property
    def broken(self) -> GridCluster:
        return self.grid.clusters[1]

    def submit(self, cluster: GridCluster, number: int) -> list[str]:
        return self.grid.submit_scripts(
            self.customer, "#!/bin/bash\ntrue\n", number, on=cluster
        )

    def settle(self, name: str) -> float:
        """Submit 100 jobs to the healthy cluster. Returns the seconds until the last
        one has ended on the contract.
        """
        begun_s = time.monotonic()
        self.wait_for_end(self.submit(self.healthy, JOBS))
        self.seconds[name] = round(time.monotonic() - begun_s, 1)
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(
            json.dumps(
                {"jobs": JOBS, "outage_s": OUTAGE_S, "seconds": self.seconds}, indent=1
            )
            + "\n"
        )
        return self.seconds[name]

    def wait_for_end(self, job_ids: list[str]) -> None:
        def all_ended() -> bool:
            return all(job.status.cold for job in self.grid.chain.jobs(job_ids))

        wait_until(all_ended, f"{len(job_ids)} jobs to end", SETTLED_WITHIN_S, 0.2)
        assert {job.status for job in self.grid.chain.jobs(job_ids)} == {
            ChainStatus.FINISHED
        }


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
            site = Site(grid, rpc, grid.new_customer())
            for cluster in grid.clusters:
                # so that connections are open and code is loaded
                site.wait_for_end(site.submit(cluster, 1))
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


def _rpc_hangs(site: Site) -> Callable[[], None]:
    site.rpc.fault(Fault.HANG)
    return lambda: site.rpc.fault(None)


OUTAGES: dict[str, Begin] = {
    "slurmctld": killed("slurmctld"),
    "sshd": killed("sshd"),
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
def test_outage_of_one_cluster__the_other_is_as_fast_as_alone(
    site: Site, name: str
) -> None:
    waiting = site.submit(site.broken, 5)
    with outage(site, OUTAGES[name]):
        took_s = site.settle(name)
        stuck = site.submit(site.broken, 5)
    alone_s = max(
        seconds for run, seconds in site.seconds.items() if run.startswith("alone")
    )
    assert took_s <= AS_FAST * alone_s + MARGIN_S, site.seconds
    site.wait_for_end(waiting + stuck)
