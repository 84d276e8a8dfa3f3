"""A customer's start-up file answers the clock request and hangs in all other commands,
for ever or beyond the guard's limit: beside many such jobs, another customer's job is
submitted and settled as fast as alone.
"""

from dataclasses import dataclass

import pytest

from devgrid.chain.model import Account
from devgrid.grid import Grid
from devgrid.machine import deadline
from devgrid.processes import wait_until
from tests.support.grid_assertions import rows, wait_for_end
from tests.support.marks import in_chaos

HANGS = 'case "$BASH_EXECUTION_STRING" in *" clock "*) ;; *) exec sleep 30;; esac\n'
TOO_LATE = 'case "$BASH_EXECUTION_STRING" in *" clock "*) ;; *) sleep 12;; esac\n'
ATTACKERS = 8  # of two threads each; a worker has no more
JOBS_OF_AN_ATTACKER = 4
PROBES = 2
CLAIMED_S = 180.0
WITHIN_S = 2.0
SETTLED_LATER_S = 1.0  # than alone; polls, blocks and receipts come at their own times
ALONE_TIMES = 4  # on a machine that is busy, a job takes longer alone, too

# Commands: what was taken at one time is one.
UNDER_WAY = (
    "SELECT count(DISTINCT (lease, lease_until)) AS number FROM effects JOIN jobs USING (cluster, job_id)"
    " WHERE customer = :customer AND kind = 'submit' AND done_at IS NULL AND lease IS NOT NULL"
)
HAPPENED = (
    "SELECT count(DISTINCT job_id) AS number FROM events JOIN jobs USING (cluster, job_id)"
    " WHERE customer = :customer AND name = :name"
)
TIMES = (
    "SELECT extract(epoch FROM min(at) FILTER (WHERE name = 'Submitted')"
    " - min(at) FILTER (WHERE name = 'Claimed')) AS submitted_s,"
    " extract(epoch FROM min(at) FILTER (WHERE events.state = 'SETTLED')"
    " - min(at) FILTER (WHERE name = 'Submitted')) AS settled_s FROM events WHERE job_id = :id"
)


@dataclass(frozen=True, slots=True)
class Times:
    """How long a job took from its claim to its submission, and from there until it was
    settled.
    """

    submitted_s: float
    settled_s: float


def times_of(grid: Grid, customer: Account) -> Times:
    """Submit a short job, and measure its times."""
    job_id = grid.submit_script(customer, "#!/bin/bash\ntrue\n")
    wait_for_end(grid, job_id, CLAIMED_S)
    settled = "SELECT 1 FROM jobs WHERE job_id = :id AND state = 'SETTLED'"
    wait_until(
        lambda: bool(rows(grid, settled, id=job_id)),
        "the ledger to see the end",
        60.0,
        0.05,
    )
    (row,) = rows(grid, TIMES, id=job_id)
    return Times(float(row.submitted_s), float(row.settled_s))


def number(grid: Grid, query: str, customer: Account, **parameters: str) -> int:
    (row,) = rows(grid, query, customer=customer.address.lower(), **parameters)
    return int(row.number)


def assert_as_fast(beside: Times, alone: Times) -> None:
    """Assert that the job was as fast as alone, except for a machine that has become
    slower since.
    """
    assert beside.submitted_s <= deadline(
        max(WITHIN_S, ALONE_TIMES * alone.submitted_s)
    ), (alone, beside)


@pytest.mark.quiet_machine
@pytest.mark.parametrize("jobs", [40, in_chaos(200)])
def test_submission__many_logins_hang__another_customers_job_is_as_fast_as_alone(
    grid: Grid, customer: Account, jobs: int
) -> None:
    times_of(grid, customer)  # the first login
    alone = times_of(grid, customer)
    attacker = grid.new_customer()
    grid.users.set_shell(attacker.address, "/bin/bash")
    (grid.users.home(attacker.address) / ".bashrc").write_text(HANGS)
    grid.submit_scripts(attacker, "#!/bin/bash\ntrue\n", jobs)
    wait_until(
        lambda: number(grid, HAPPENED, attacker, name="ScriptFetched") == jobs,
        "all claims",
        CLAIMED_S,
        0.2,
    )
    wait_until(
        lambda: number(grid, UNDER_WAY, attacker) > 0, "one to hang", CLAIMED_S, 0.05
    )
    under_way = []
    for _ in range(PROBES):
        beside = times_of(grid, customer)
        under_way.append(number(grid, UNDER_WAY, attacker))
        assert_as_fast(beside, alone)
        assert beside.settled_s <= deadline(ALONE_TIMES * alone.settled_s), (
            alone,
            beside,
        )
        if jobs == 200:
            assert beside.submitted_s <= deadline(WITHIN_S), (alone, beside)
            assert beside.settled_s <= deadline(alone.settled_s + SETTLED_LATER_S), (
                alone,
                beside,
            )
    assert max(under_way) <= 2, under_way
    wait_until_happened(grid, attacker, "SubmitOutcomeUnknown", 60.0)
    beside = times_of(grid, customer)
    assert_as_fast(beside, alone)
    print(alone, beside, under_way)


def wait_until_happened(
    grid: Grid, customer: Account, name: str, timeout_s: float
) -> None:
    """Wait until a job of this customer has an event of this name."""
    wait_until(
        lambda: number(grid, HAPPENED, customer, name=name) > 0, name, timeout_s, 0.2
    )


@pytest.mark.chaos
@pytest.mark.quiet_machine
def test_submission__late_logins_fill_a_worker__another_job_is_as_fast_as_alone(
    grid: Grid, customer: Account
) -> None:
    times_of(grid, customer)  # the first login
    alone = times_of(grid, customer)
    attackers = [grid.new_customer() for _ in range(ATTACKERS)]
    for attacker in attackers:
        grid.users.set_shell(attacker.address, "/bin/bash")
        (grid.users.home(attacker.address) / ".bashrc").write_text(TOO_LATE)
    for attacker in attackers:
        grid.submit_scripts(attacker, "#!/bin/bash\ntrue\n", JOBS_OF_AN_ATTACKER)
    for attacker in attackers:
        wait_until_happened(grid, attacker, "SubmitNotExecuted", CLAIMED_S)
    for _ in range(PROBES):
        beside = times_of(grid, customer)
        print(
            alone, beside, [number(grid, UNDER_WAY, attacker) for attacker in attackers]
        )
        assert_as_fast(beside, alone)
