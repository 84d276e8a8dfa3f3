"""A new cluster, with the real processes: registered from what SLURM shows, approved,
at work, and dearer.
"""

import json
from collections.abc import Iterator

import pytest

from devgrid.chain.model import ChainNode, ChainPrices, Provider
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.commands import supervisor
from tests.support.grid_assertions import slurm_of, wait_for_end, waiting_cpu_price_wei
from tests.support.grids import BLOCK_TIME_S

DEARER_WEI = 12 * 10**17


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    """The contract does not know this cluster: what registers it is its own fleet, once
    that is started.
    """
    running = Grid.start(
        GridOptions(
            block_time_s=BLOCK_TIME_S,
            registered=False,
            overrides={"BENCHMARK_DISABLE": "true"},
        )
    )
    try:
        running.fleet.start(flower=False)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def registered(grid: Grid) -> Provider:
    """What the fleet registers, before it is approved."""
    wait_until(
        lambda: waiting_cpu_price_wei(grid) is not None, "the registration", 90.0
    )
    return grid.chain.providers.waiting(grid.chain.account("provider").address)


@pytest.fixture(scope="module")
def approved(grid: Grid, registered: Provider) -> Grid:
    """What the fleet registered is approved."""
    wait_until(
        lambda: registration_status(grid) == "waiting",
        "the ledger to know that it waits",
        60.0,
        0.5,
    )
    grid.chain.admin.approve_provider(grid.chain.account("provider").address)
    wait_until(
        lambda: registration_status(grid) == "approved",
        "the ledger to know of the approval",
        60.0,
        0.5,
    )
    return grid


def registration_status(grid: Grid) -> str:
    environment = {
        name: value
        for name, value in grid.environment.items()
        if "PRIVATE_KEY" not in name
    }
    result = supervisor("provider", "show", "-o", "json", env=environment)
    assert result.exit_code == 0, result.output
    return str(json.loads(result.stdout)["registration_status"])


def test_registration__unknown_cluster__says_what_slurm_and_settings_say(
    grid: Grid, registered: Provider
) -> None:
    layout = slurm_of(grid).layout
    node = ChainNode(layout.gpus_per_node, layout.cpus_per_node, layout.memory_mb)
    assert registered.nodes == (node,) * len(layout.node_ports)
    assert registered.prices == ChainPrices()
    assert registered.labels == (("name", "devgrid"),)


def test_registration__approved__the_cluster_runs_its_first_job(approved: Grid) -> None:
    job_id = approved.submit_script(approved.new_customer(), "#!/bin/bash\ntrue\n")
    assert wait_for_end(approved, job_id, 90.0).status is ChainStatus.FINISHED


def test_price_changed__restart__is_on_chain_and_nothing_else_is_new(
    approved: Grid,
) -> None:
    grid = approved
    for name in ("worker", "beat"):
        grid.processes.stop(grid.processes.find(name))
    grid.environment["METASCHEDULER_CPU_PRICE_PER_MIN"] = str(DEARER_WEI)
    grid.fleet.start_worker()
    grid.fleet.start_beat()
    wait_until(lambda: waiting_cpu_price_wei(grid) == DEARER_WEI, "the new price", 90.0)
    address = grid.chain.account("provider").address
    waiting, in_force = (
        grid.chain.providers.waiting(address),
        grid.chain.providers.get(address),
    )
    assert (waiting.nodes, waiting.labels) == (in_force.nodes, in_force.labels)
    wait_until(
        lambda: registration_status(grid) == "changing",
        "the ledger to know that it waits",
        60.0,
        0.5,
    )
