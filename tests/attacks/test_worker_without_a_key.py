"""A worker has no key for job_submit.lua, or another one than slurmctld's. The job is
not given back for that: it waits in READY, an alarm shows what to do, and the job is
submitted once a worker has the key.
"""

import pytest

from devgrid.chain.model import Account
from devgrid.fleet import Fleet
from devgrid.grid import Grid
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.end_states import PATIENCE_S
from tests.support.grid_assertions import (
    alarm,
    fails_for_long,
    journal,
    parked,
    rows,
    slurm_ids,
    state_of,
    wait_for_end,
)
from tests.support.marks import in_chaos

KEY = "SLURM_SUBMIT_KEY"
NONE, OTHER = (
    "the worker has no key: give it the key of",
    "the worker has another key: give it the key of",
)
WITHOUT = {
    "no key": (None, NONE),
    "an empty key": ("", NONE),
    "a wrong key": ("0" * 64, OTHER),
}


def refused(grid: Grid, job_id: str) -> str:
    """Why the job's submission failed the last time. The job must not be given back for
    that.
    """
    assert "SubmitRejected" not in journal(grid, job_id)
    effects = rows(
        grid,
        "SELECT last_error FROM effects WHERE job_id = :id AND kind = 'submit'",
        id=job_id,
    )
    return str(effects[0].last_error or "") if effects else ""


@pytest.mark.parametrize(
    "case", ["a wrong key", *map(in_chaos, ["no key", "an empty key"])]
)
def test_worker__without_slurmctlds_key__job_waits_with_an_alarm_until_the_key_comes(
    grid: Grid, customer: Account, case: str
) -> None:
    key, advice = WITHOUT[case]
    grid.processes.stop(grid.fleet.find("worker"))
    environment = {
        name: value for name, value in grid.environment.items() if name != KEY
    }
    environment |= {} if key is None else {KEY: key}
    worker = Fleet(grid.processes, environment).start_worker()
    job_id = grid.submit_script(customer, "#!/bin/bash\ntrue\n")
    wait_until(
        lambda: KEY in refused(grid, job_id),
        "the submission to be refused",
        PATIENCE_S,
        0.1,
    )
    wait_until(
        lambda: state_of(grid, job_id) == "READY", "the job to wait", PATIENCE_S, 0.1
    )
    fails_for_long(grid, job_id)
    wait_until(
        lambda: advice in alarm(grid), "the operator to be called", PATIENCE_S, 0.2
    )
    assert "SubmitRejected" not in journal(grid, job_id)
    assert not grid.chain.job(job_id).status.is_final
    assert slurm_ids(grid, job_id) == []
    grid.processes.stop(worker)
    grid.fleet.start_worker()
    assert wait_for_end(grid, job_id, PATIENCE_S).status is ChainStatus.FINISHED
    assert len(slurm_ids(grid, job_id)) == 1
    wait_until(lambda: alarm(grid) == "", "the alarm to be over", PATIENCE_S, 0.2)
    assert parked(grid) == []
