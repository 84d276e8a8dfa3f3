"""The logs of a fleet at work: every line of each process is a JSON object, and a job's
lines are found by its ids.
"""

import json
from datetime import datetime
from typing import Any

import pytest

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.ports import free_port
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.grid_assertions import rows, wait_for, wait_for_end

PROCESSES = ("worker", "beat", "callbacks", "flower", "reporter", "metrics")
OF_ONE_CLUSTER = ("worker", "beat", "callbacks", "metrics", "reporter")


@pytest.fixture(scope="module")
def job_id(grid: Grid, customer: Account) -> str:
    """A job that has come to its end, while a Flower was there."""
    fleet = grid.fleet
    fleet.start_flower()
    fleet.wait_for_flower()
    fleet.start_metrics(free_port())
    wait_until(
        lambda: bool(fleet.shown_workers()),
        "Flower to see the worker",
        30.0,
        every_s=0.2,
    )
    submitted = grid.submit_script(
        customer, "#!/bin/bash\nuntil [ -e ~/reported ]; do sleep 0.1; done\n"
    )
    wait_for(grid, submitted, {ChainStatus.RUNNING})
    (grid.users.home(customer.address) / "reported").touch()
    wait_for_end(grid, submitted)
    wait_until(
        lambda: _mined(grid, submitted) == 2,
        "both reports to be mined",
        30.0,
        every_s=0.2,
    )
    called = "SELECT 1 FROM callbacks WHERE job_id = :id"
    wait_until(
        lambda: len(rows(grid, called, id=submitted)) == 2,
        "its start and its end to be told",
        30.0,
        0.2,
    )
    for name in ("flower", "reporter", "metrics"):
        grid.processes.stop(grid.processes.find(name))
    return submitted


def _mined(grid: Grid, job_id: str) -> int:
    return len(
        rows(
            grid,
            "SELECT id FROM transactions WHERE job_id = :id AND state = 'MINED'",
            id=job_id,
        )
    )


def lines(grid: Grid, name: str) -> list[dict[str, Any]]:
    whole, _, _ = (grid.processes.logs / f"{name}.log").read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


@pytest.mark.parametrize("name", PROCESSES)
def test_log__each_line__is_an_object_with_event_level_logger_and_moment(
    grid: Grid, job_id: str, name: str
) -> None:
    told = lines(grid, name)
    if name != "beat":  # which has nothing to tell unless something fails
        assert told
    for line in told:
        assert {"event", "level", "logger", "timestamp"} <= line.keys()
        assert datetime.fromisoformat(line["timestamp"]).tzinfo is not None
        assert line.get("cluster") == (
            grid.cluster.name if name in OF_ONE_CLUSTER else None
        ), line


def test_log__of_a_job__is_found_by_its_id_slurm_id_and_transactions(
    grid: Grid, job_id: str
) -> None:
    told = [line for line in lines(grid, "worker") if line.get("job_id") == job_id]
    (job,) = rows(grid, "SELECT slurm_id FROM jobs WHERE job_id = :id", id=job_id)
    hashes = {
        row.hash
        for row in rows(
            grid, "SELECT hash FROM transactions WHERE job_id = :id", id=job_id
        )
    }
    assert {line["slurm_id"] for line in told if line.get("slurm_id")} == {job.slurm_id}
    assert {line["tx_hash"] for line in told if "tx_hash" in line} == hashes
    assert {"effect_completed", "slurm_state_changed", "transaction_mined"} <= {
        line["event"] for line in told
    }
    heard = [
        line for line in lines(grid, "callbacks") if line["event"] == "callback_stored"
    ]
    assert {(line["job_id"], line["slurm_id"]) for line in heard} == {
        (job_id, job.slurm_id)
    }
