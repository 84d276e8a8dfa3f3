"""Jobs for chaos tests: each records its start, and records for the audit
how it must end.
"""

import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import text

from devgrid.chain.model import Account, ChainPrices
from devgrid.grid import Grid, definition_of
from devgrid.processes import wait_until
from devgrid.services.workflow import Resources
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.audit_evidence import EXPECTED, START_RECORDS
from tests.support.grid_assertions import ledger, rows, slurm_of, wait_for

ENDLESS_S = 600
# a worker that was killed takes a minute to be back on a machine that is busy with
# others
PATIENCE_S = 180.0
# blocks that a reorganisation may take back: some seconds of the chain
CONFIRMATIONS = 40
CLAIMED = {ChainStatus.SCHEDULED, ChainStatus.RUNNING}


def start_records(grid: Grid) -> Path:
    """The folder of the records of the jobs' starts: every Linux user may write there."""
    folder = grid.folder / START_RECORDS
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)
    return folder


def marking(grid: Grid, body: str) -> str:
    """A script that records its start, and then does `body`."""
    record = f'"{start_records(grid)}/$SLURM_JOB_NAME-$SLURM_JOB_ID"'
    return f'#!/bin/bash\necho "started $SLURM_JOB_NAME $SLURM_JOB_ID" >>{record}\n{body}\n'


def expect(grid: Grid, job_id: str, *ends: str, **certain: Any) -> None:
    """Record for the audit that the job must end with one of these statuses; and `runs`
    and `exit_status`, if certain.
    """
    with (grid.folder / EXPECTED).open("a") as file:
        file.write(json.dumps({"job_id": job_id, "ends": ends, **certain}) + "\n")


def finishing(grid: Grid, customer: Account, seconds: float = 0.2) -> str:
    """A job that does its work."""
    job_id = grid.submit_script(customer, marking(grid, f"sleep {seconds}"))
    expect(grid, job_id, "FINISHED", runs=1, exit_status=0)
    return job_id


def finishing_together(grid: Grid, customer: Account, number: int) -> list[str]:
    """So many jobs that do their work, requested at once."""
    job_ids = grid.submit_scripts(customer, marking(grid, "sleep 0.2"), number)
    for job_id in job_ids:
        expect(grid, job_id, "FINISHED", runs=1, exit_status=0)
    return job_ids


def failing(grid: Grid, customer: Account) -> str:
    """A job that ends with exit code 3."""
    job_id = grid.submit_script(customer, marking(grid, "exit 3"))
    expect(grid, job_id, "FAILED", runs=1, exit_status=3 * 256)
    return job_id


def timing_out(grid: Grid, customer: Account) -> str:
    """A job that runs longer than the one minute that is paid; SLURM ends it after
    about 80 s.
    """
    job_id = grid.submit_script(
        customer, marking(grid, f"sleep {ENDLESS_S}"), minutes=1
    )
    expect(grid, job_id, "OUT_OF_CREDITS", runs=1)
    return job_id


def cancelled(grid: Grid, customer: Account, when: set[ChainStatus]) -> str:
    """A job that its customer cancels once it has one of these statuses."""
    job_id = grid.submit_script(customer, marking(grid, f"sleep {ENDLESS_S}"))
    expect(grid, job_id, "CANCELLED")
    wait_for(grid, job_id, when, PATIENCE_S)
    grid.chain.customers.cancel_job(customer, job_id)
    return job_id


def topped_up(grid: Grid, customer: Account) -> str:
    """A job that gets five more minutes while it runs, and ends when SLURM has the new
    limit.
    """
    go = start_records(grid) / f"go-{random.randrange(10**9)}"
    body = f'until [ -e "{go}" ]; do sleep 0.1; done'
    job_id = grid.submit_script(customer, marking(grid, body), minutes=10)
    expect(grid, job_id, "FINISHED", runs=1, exit_status=0)
    wait_for(grid, job_id, RUNNING, PATIENCE_S)
    grid.chain.customers.top_up_job(
        customer,
        job_id,
        5 * ChainPrices().of(definition_of("", Resources(memPerCpu=100))),
    )
    wait_until(
        lambda: _limit(grid, job_id) == "15:00",
        "SLURM to have the new limit",
        PATIENCE_S,
        0.1,
    )
    go.touch()
    return job_id


def rejected(grid: Grid, customer: Account) -> str:
    """A job that SLURM rejects: five tasks of five CPUs fit into 32 CPUs, but not into
    four nodes of eight.
    """
    job_id = grid.submit_script(customer, marking(grid, "true"), tasks=5, cpusPerTask=5)
    expect(grid, job_id, "PENDING", runs=0)
    return job_id


def without_script(grid: Grid, customer: Account) -> str:
    """A job whose script no service has."""
    job_id = grid.request(customer, "f" * 64, Resources(memPerCpu=100), 60)
    expect(grid, job_id, "FAILED", runs=0)
    return job_id


def cancelled_sometime(grid: Grid, customer: Account, chance: random.Random) -> str:
    """A job that is cancelled early or late."""
    return cancelled(
        grid,
        customer,
        chance.choice([{ChainStatus.META_SCHEDULED, *CLAIMED}, CLAIMED, RUNNING]),
    )


def newcomers(grid: Grid) -> str:
    """The first job of a customer who has no account yet."""
    return finishing(grid, grid.new_customer())


def reorganised(grid: Grid, customer: Account) -> str:
    """A job that runs while the chain loses the blocks since the contract had it
    RUNNING. It ends when the contract has it RUNNING again.
    """
    go = start_records(grid) / f"go-{random.randrange(10**9)}"
    job_id = grid.submit_script(
        customer, marking(grid, f'until [ -e "{go}" ]; do sleep 0.1; done')
    )
    expect(grid, job_id, "FINISHED", runs=1, exit_status=0)
    running_at = wait_for(grid, job_id, RUNNING, PATIENCE_S).block_number_state_change
    with grid.no_blocks():  # else a late scan would lose more blocks than it must bear
        read = partial(rows, grid, READ_UP_TO, block=running_at)
        wait_until(lambda: bool(read()), "the scan to read the block", PATIENCE_S, 0.05)
    grid.chain.reorganise_from(running_at)
    wait_for(grid, job_id, RUNNING, PATIENCE_S)
    go.touch()
    return job_id


READ_UP_TO = (
    "SELECT 1 FROM cursors WHERE stream = 'contract' AND block_number >= :block"
)
RUNNING = {ChainStatus.RUNNING}
Submit = Callable[[Grid, Account, random.Random], str]
KINDS: dict[str, Submit] = {
    "finishing": lambda grid, customer, _: finishing(grid, customer),
    "failing": lambda grid, customer, _: failing(grid, customer),
    "cancelled": lambda grid, customer, _: cancelled(grid, customer, RUNNING),
    "cancelled_sometime": cancelled_sometime,
    "topped_up": lambda grid, customer, _: topped_up(grid, customer),
    "rejected": lambda grid, customer, _: rejected(grid, customer),
    "newcomers": lambda grid, *_: newcomers(grid),
    "reorganised": lambda grid, customer, _: reorganised(grid, customer),
    "without_script": lambda grid, customer, _: without_script(grid, customer),
}


def wait_for_end(grid: Grid, job_ids: Sequence[str], timeout_s: float = 120.0) -> None:
    """Wait until each job is final on the contract or was given back, and nothing is
    left to do for these jobs.
    """
    wait_until(
        lambda: ended(grid, job_ids), f"{job_ids} to end", timeout_s, every_s=0.1
    )
    wait_until(
        lambda: not rows(grid, OPEN_OF, ids=list(job_ids)),
        "nothing to be left to do",
        timeout_s,
        0.05,
    )
    wait_for_rest(grid, timeout_s, effects=False)


def ended(grid: Grid, job_ids: Sequence[str]) -> bool:
    """Whether each job is final on the contract or was given back."""
    query = "SELECT job_id FROM jobs WHERE job_id = ANY(:ids) AND state = 'REFUSED'"
    given_back = {row.job_id for row in rows(grid, query, ids=list(job_ids))}
    kept = [job_id for job_id in job_ids if job_id not in given_back]
    return all(job.status.is_final for job in grid.chain.jobs(kept))


OPEN_OF = "SELECT 1 FROM effects WHERE job_id = ANY(:ids) AND done_at IS NULL AND parked_at IS NULL"


OPEN_EFFECTS = (
    "SELECT count(*) FROM effects WHERE done_at IS NULL AND parked_at IS NULL"
)
OTHER_WORK = """
    SELECT (SELECT count(*) FROM transactions WHERE state NOT IN ('MINED', 'REVERTED', 'FOREIGN'))
        + (SELECT count(*) FROM callbacks WHERE read_at IS NULL)"""


def wait_for_rest(
    grid: Grid, timeout_s: float = 120.0, *, effects: bool = True
) -> None:
    """Wait until nothing is left to do: no transaction, no callback, no event in the
    spool, and no effect if `effects`.
    """
    with ledger(grid) as engine:

        def at_rest() -> bool:
            with engine.connect() as connection:
                left = connection.scalar(text(OTHER_WORK)) or (
                    effects and connection.scalar(text(OPEN_EFFECTS))
                )
            spooled = [
                file
                for file in (grid.folder / "spool").iterdir()
                if file.name.endswith(("-end", "-start"))
            ]
            return not left and not spooled

        wait_until(at_rest, "nothing to be left to do", timeout_s, every_s=0.05)


def _limit(grid: Grid, job_id: str) -> str:
    """The time limit of a job, as squeue prints it."""
    squeue = ("squeue", "--noheader", "--states=all", f"--name={job_id}", "--format=%l")
    return slurm_of(grid).run(*squeue).stdout.strip()
