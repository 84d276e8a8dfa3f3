"""The journey of a job on real parts: what the contract, SLURM and the customer see at
its end, over both ways to SLURM.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from devgrid.chain.model import Account, ChainPrices
from devgrid.grid import Grid, definition_of
from devgrid.options import GridOptions, Transport
from devgrid.processes import wait_until
from devgrid.services.grid_logger import logged_lines
from devgrid.services.workflow import Resources
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.end_states import assert_overrun_is_billed
from tests.support.grid_assertions import (
    execute,
    job_record,
    journal,
    parked,
    rows,
    slurm_ids,
    slurm_of,
    wait_for,
    wait_for_end,
)
from tests.support.grids import served_grid
from tests.support.transports import REST, SSH, OnlySsh, only_ssh, rest_in_chaos

WORKFLOWS = Path(__file__).parents[2] / "devgrid" / "workflows"


@pytest.fixture(scope="module")
def grid(transport: Transport) -> Iterator[Grid]:
    with served_grid(GridOptions(transport=transport, min_job_age_s=86_400)) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def overrunning(grid: Grid, customer: Account) -> str:
    """A job that runs into its limit of a minute, which SLURM ends some 80 s after its
    start: begun first, looked at last.
    """
    return grid.submit_script(customer, "#!/bin/bash\nsleep 300\n", minutes=1)


def test_journey__workflow_file__finishes_as_the_customers_own_user(
    grid: Grid, customer: Account
) -> None:
    gate = grid.users.home(customer.address) / "seen-running"
    workflow = (WORKFLOWS / "hello-world.yaml").read_text()
    # two seconds may pass between two looks
    works = f"until [ -e ~/{gate.name} ]; do sleep 0.1; done"
    assert "command: sleep 2\n" in workflow
    job_id = grid.submit(
        customer, workflow.replace("command: sleep 2\n", f"command: {works}\n")
    )
    wait_until(
        lambda: "SlurmRunningObserved" in journal(grid, job_id),
        "a look that sees it run",
        60.0,
        0.1,
    )
    gate.touch()
    job = wait_for_end(grid, job_id)
    assert (job.status, job.exit_code, job.last_error) == (ChainStatus.FINISHED, 0, "")
    assert f"hello world, from {customer.address}" in grid.output(
        customer.address, job_id
    )
    assert len(slurm_ids(grid, job_id)) == 1
    wait_until(
        lambda: (
            rows(grid, "SELECT state FROM jobs WHERE job_id = :id", id=job_id)[0].state
            == "SETTLED"
        ),
        "the ledger to know",
        10.0,
    )
    open_effects = "SELECT kind FROM effects WHERE job_id = :id AND done_at IS NULL"
    wait_until(
        lambda: not rows(grid, open_effects, id=job_id),
        "nothing to be left to do",
        10.0,
    )
    story = journal(grid, job_id)
    wanted = [
        "Claimed",
        "ScriptFetched",
        "SubmitStarted",
        "Submitted",
        "SlurmRunningObserved",
        "SlurmCompleted",
        "ChainStatusObserved",
    ]
    positions = [story.index(name) for name in wanted[:-1]]
    assert positions == sorted(positions)
    assert story[-1] == "ChainStatusObserved"


def test_journey__own_sbatch_lines__has_the_supervisors_comment_and_no_requeue(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(
        customer, "#!/bin/bash\n#SBATCH --comment=mine\n#SBATCH --ntasks=7\ntrue\n"
    )
    wait_for_end(grid, job_id)
    shown = job_record(grid, slurm_ids(grid, job_id)[0])
    assert f"Comment=supervisor {grid.environment['PUBLIC_ADDRESS']}" in shown
    assert "Requeue=0" in shown
    assert "NumTasks=1 " in shown  # the customer's own #SBATCH lines are not read


def test_journey__non_zero_exit__fails_with_the_raw_wait_status(
    grid: Grid, customer: Account
) -> None:
    job = wait_for_end(grid, grid.submit_script(customer, "#!/bin/bash\nexit 3\n"))
    assert (job.status, job.exit_code, job.last_error) == (
        ChainStatus.FAILED,
        3 * 256,
        "exit code 3",
    )


def test_journey__killed_by_a_signal__fails_with_the_signal(
    grid: Grid, customer: Account
) -> None:
    job = wait_for_end(grid, grid.submit_script(customer, "#!/bin/bash\nkill -9 $$\n"))
    assert (job.status, job.exit_code, job.last_error) == (
        ChainStatus.FAILED,
        9,
        "killed by signal 9",
    )


def test_journey__several_tasks_and_gpus__slurm_gives_them(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit(customer, (WORKFLOWS / "several-tasks.yaml").read_text())
    assert wait_for_end(grid, job_id).status is ChainStatus.FINISHED
    output = grid.output(customer.address, job_id)
    assert {f"task {number} of 4" for number in range(4)} <= set(output.splitlines())
    assert [line for line in output.splitlines() if line.startswith("round")] == [
        "round 1",
        "round 2",
        "round 3",
    ]
    shown = job_record(grid, slurm_ids(grid, job_id)[0])
    assert "NumTasks=4" in shown
    assert "CPUs/Task=2" in shown
    assert "gres:gpu:2" in shown or "gres/gpu:2" in shown  # 22.05; 24.11


HOSTILE = [
    "plain",
    'it\'s "quoted" $HOME `id` $(id) \\ \\n !history',
    "EOF",
    "EOT",
    "two\nlines and a tab\t",
    "\x01\x02\x1b[31m\x7f \u0080 \N{PILE OF POO} end",
    "; rm -rf / #",
    "--job-name=other",
]


@pytest.fixture(scope="module")
def hostile_jobs(grid: Grid, customer: Account) -> dict[str, str]:
    """The jobs that print these texts, side by side."""
    return {text: grid.submit_script(customer, prints(text)) for text in HOSTILE}


def prints(text: str) -> str:
    quoted = "'" + text.replace("'", "'\\''") + "'"
    return f"#!/bin/bash\nprintf %s {quoted}\ncat <<'EOF'\n`id`$(id)\nEOF\n"


@pytest.mark.parametrize("text", HOSTILE)
def test_journey__hostile_script__arrives_byte_for_byte(
    grid: Grid, customer: Account, hostile_jobs: dict[str, str], text: str
) -> None:
    job_id = hostile_jobs[text]
    assert wait_for_end(grid, job_id).status is ChainStatus.FINISHED
    log = (grid.users.home(customer.address) / f"{job_id}.log").read_bytes()
    assert log == text.encode() + b"`id`$(id)\n"


@only_ssh(OnlySsh.NO_DIFFERENCE)
def test_journey__unknown_script__fails_with_zero_minutes_and_a_reason(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.request(customer, "f" * 64, Resources(memPerCpu=100), 60)
    job = wait_for_end(grid, job_id)
    assert (job.status, job.final_cost_wei) == (ChainStatus.FAILED, 0)
    assert "NOT_FOUND" in job.last_error
    assert slurm_ids(grid, job_id) == []


def test_journey__rejected_by_slurm__goes_back_and_the_customer_learns_why(
    grid: Grid, customer: Account, transport: Transport
) -> None:
    # Five tasks of five CPUs fit into 32 CPUs, and not into four nodes of eight.
    job_id = grid.submit_script(customer, "#!/bin/bash\ntrue\n", tasks=5, cpusPerTask=5)
    wait_until(
        lambda: "SubmitRejected" in journal(grid, job_id),
        "SLURM to reject the job",
        30.0,
        0.1,
    )
    wait_for(grid, job_id, {ChainStatus.PENDING})

    def lines() -> list[str]:
        return logged_lines(grid.folder / "user-logs", customer.address, job_id)

    wait_until(lambda: bool(lines()), "the customer to be told", 10.0)
    assert "Requested node configuration is not available" in lines()[0]

    def left_to_do() -> list[str]:
        query = "SELECT kind FROM effects WHERE job_id = :id AND done_at IS NULL"
        return [row.kind for row in rows(grid, query, id=job_id)]

    # the customer's login session had the token, and may submit the job itself
    last = ["cancel"] if transport == SSH else []
    wait_until(lambda: left_to_do() == last, "nothing else to be left to do", 10.0)
    grid.chain.customers.cancel_job(customer, job_id)  # no other process takes it


@rest_in_chaos
def test_journey__account_comes_after_the_claim__job_waits_and_then_runs(
    grid: Grid, transport: Transport
) -> None:
    customer = grid.chain.new_account()
    grid.chain.admin.mint_credits(customer.address, 10**24)
    job_id = grid.submit_script(customer, "#!/bin/bash\nid --user --name\n")
    # slurmrestd says only "access denied", which is no proof that nothing was submitted
    said = {
        SSH: f"the login node knows no user {customer.address}; expected an account: see LDAP and SSSD on the login node",
        REST: "its submission was cut off, and SLURM has nothing of it",
    }
    tried = "SELECT 1 FROM effects WHERE kind = 'submit' AND job_id = :id AND attempts > 1 AND last_error = :said"
    wait_until(
        lambda: bool(rows(grid, tried, id=job_id, said=said[transport])),
        "the submission to be tried again",
        60.0,
        0.1,
    )
    assert "SubmitRejected" not in journal(grid, job_id)
    grid.users.add(customer.address)
    assert wait_for_end(grid, job_id).status is ChainStatus.FINISHED
    assert grid.output(customer.address, job_id).split() == [customer.address]


def test_journey__cancelled_while_queued__costs_nothing(
    grid: Grid, customer: Account
) -> None:
    first = grid.submit_script(
        customer, "#!/bin/bash\nsleep 600\n", tasks=4, cpusPerTask=7
    )
    wait_for(grid, first, {ChainStatus.RUNNING})
    second = grid.submit_script(
        customer, "#!/bin/bash\nsleep 600\n", tasks=4, cpusPerTask=7
    )
    wait_until(
        lambda: "Submitted" in journal(grid, second),
        "the second job to be queued",
        30.0,
        0.1,
    )
    grid.chain.customers.cancel_job(customer, second)
    job = wait_for_end(grid, second)
    assert (job.status, job.final_cost_wei) == (ChainStatus.CANCELLED, 0)
    grid.chain.customers.cancel_job(customer, first)
    job = wait_for_end(grid, first)
    assert job.status is ChainStatus.CANCELLED
    left = ("squeue", "--noheader", f"--name={first},{second}")
    wait_until(
        lambda: slurm_of(grid).run(*left).stdout == "",
        "the node to clear up after the jobs",
        60.0,
        0.2,
    )


def test_journey__top_up_of_a_running_job__twice_the_same_event_is_once_the_minutes(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, "#!/bin/bash\nsleep 600\n", minutes=10)
    wait_for(grid, job_id, {ChainStatus.RUNNING})
    slurm_id = slurm_ids(grid, job_id)[0]
    assert "TimeLimit=00:10:00" in job_record(grid, slurm_id)
    definition = definition_of("", Resources(memPerCpu=100))
    grid.chain.customers.top_up_job(customer, job_id, 5 * ChainPrices().of(definition))
    wait_until(
        lambda: "TimeLimit=00:15:00" in job_record(grid, slurm_id),
        "the limit to be raised",
        20.0,
        0.1,
    )
    # The scan reads the whole chain again: every event comes a second time.
    grid.processes.kill(grid.fleet.find("worker"))
    genesis = grid.chain.rpc.call("eth_getBlockByNumber", "0x0", False)["hash"]
    execute(grid, "DELETE FROM blocks")
    execute(
        grid,
        "UPDATE cursors SET block_number = 0, block_hash = :genesis WHERE stream = 'contract'",
        genesis=genesis,
    )
    head = grid.chain.block_number()
    grid.fleet.start_worker()
    read = "SELECT block_number FROM cursors WHERE stream = 'contract'"
    wait_until(lambda: rows(grid, read)[0].block_number >= head, "the scan", 60.0, 0.1)
    assert "TimeLimit=00:15:00" in job_record(grid, slurm_id)
    assert journal(grid, job_id).count("ToppedUp") == 1
    grid.chain.customers.cancel_job(customer, job_id)
    assert wait_for_end(grid, job_id).status is ChainStatus.CANCELLED


@only_ssh(OnlySsh.LOGIN_NODE)
def test_worker__asked_to_end_in_a_submission__finishes_it_first(grid: Grid) -> None:
    slow = grid.new_customer(shell="/bin/bash")  # noqa: S604  his login shell
    (grid.users.home(slow.address) / ".bashrc").write_text("sleep 2\n")
    job_ids = grid.submit_scripts(slow, "#!/bin/bash\ntrue\n", 3)

    begun = list[str]()

    def under_way() -> bool:
        stories = {job_id: journal(grid, job_id) for job_id in job_ids}
        begun[:] = (
            job_id
            for job_id, story in stories.items()
            if "SubmitStarted" in story and "Submitted" not in story
        )
        return bool(begun)

    wait_until(under_way, "a submission to begin", 60.0)
    grid.processes.kill(grid.fleet.find("worker"), signal.SIGTERM)
    done = [job_id for job_id in begun if "Submitted" in journal(grid, job_id)]
    grid.fleet.start_worker()
    assert done == begun
    for job_id in job_ids:
        assert wait_for_end(grid, job_id).status is ChainStatus.FINISHED
        assert journal(grid, job_id).count("SubmitStarted") == 1


@only_ssh(OnlySsh.NO_DIFFERENCE)
def test_scan__claim_with_an_unread_receipt__is_found(
    grid: Grid, customer: Account
) -> None:
    """The worker is away while another program claims with the provider's key: only the
    log tells.
    """
    fleet = grid.fleet
    grid.processes.kill(fleet.find("worker"))
    job_id = grid.submit_script(customer, "#!/bin/bash\ntrue\n")
    wait_for(grid, job_id, {ChainStatus.META_SCHEDULED})
    grid.chain.send(grid.chain.account("provider"), "MetaScheduler", "claimNextJob")
    fleet.start_worker()
    assert wait_for_end(grid, job_id).status is ChainStatus.FINISHED


@only_ssh(OnlySsh.ELSEWHERE)
def test_journey__time_limit__is_out_of_credits_and_billed_to_the_minute(
    grid: Grid, overrunning: str
) -> None:
    assert_overrun_is_billed(grid, overrunning)


def test_journey__at_its_end__nothing_is_parked(grid: Grid) -> None:
    assert parked(grid) == []
