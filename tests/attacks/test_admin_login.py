"""The admin's login on the login node is stolen, or a customer's session gives false
answers: the admin runs only what needs his rights. sshd logs each command of a grid
with its user.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from devgrid.chain.model import Account, ChainPrices
from devgrid.cluster.linux_users import admin
from devgrid.grid import Grid
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.end_states import PATIENCE_S, as_customer, row_of, running
from tests.support.grid_assertions import wait_for_end
from tests.support.grids import BLOCK_TIME_S
from tests.support.marks import in_chaos
from tests.support.requeueing import shown

SLEEPS = "#!/bin/bash\nsleep 600\n"
WRITES_DOWN = """#!/bin/sh
printf '%s\\0%s\\0' "$(id -un)" "$SSH_ORIGINAL_COMMAND" >>{log}
exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"
"""
# docs/security.md has the reason why each is not run as the customer.
# SLURM must be told to reject a requeue after its end
REQUEUEABLE = "#!/bin/sh\nexec scontrol update JobId=$SLURM_JOB_ID Requeue=1\n"
OF_THE_ADMIN = {
    "clock",
    "homes",
    "sacct",
    "sacctmgr",
    "scancel",
    "scontrol requeuehold",
    "scontrol show",
    "scontrol update",
    "scripts",
    "sinfo",
    "specs",
    "squeue",
}
OF_A_CUSTOMER = {"clock", "guard", "logs"}


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, id="no accounting"), in_chaos(True, id="accounting")],
)
def grid(request: pytest.FixtureRequest) -> Iterator[Grid]:
    options = GridOptions(
        block_time_s=BLOCK_TIME_S,
        job_submit=False,
        accounting=request.param,
        overrides={"SWEEP_EVERY_S": "2"},
    )
    started = Grid.start(options)
    try:
        _write_down_commands(started)
        started.fleet.start(flower=False)
        yield started
    finally:
        started.stop()


def _log(grid: Grid) -> Path:
    return grid.folder / "commands"


def _write_down_commands(grid: Grid) -> None:
    log, program, config = (
        _log(grid),
        grid.folder / "write-down",
        grid.folder / "sshd" / "sshd_config",
    )
    log.touch()
    log.chmod(0o666)
    program.write_text(WRITES_DOWN.format(log=log))
    program.chmod(0o755)
    config.write_text(f"ForceCommand {program}\n{config.read_text()}")
    grid.processes.kill(grid.processes.find("sshd"))
    grid.processes.start_again("sshd")


def program_of(command: str) -> str:
    """The name of the program that a command runs: for a shell script its `$0`, for
    scontrol with its subcommand.
    """
    words = shlex.split(command)
    while (
        words[0] in ("env", "timeout", "-k") or "=" in words[0] or words[0].isdecimal()
    ):
        words = words[1:]
    if words[:2] == ["/bin/sh", "-c"]:
        # in front of the command: the shell, its text and the text's `$0`
        before = {"fed": 5, "exec": 4}.get(words[3])
        return words[3] if before is None else program_of(shlex.join(words[before:]))
    name = Path(words[0]).name
    return (
        f"{name} {next(word for word in words[1:] if not word.startswith('-'))}"
        if name == "scontrol"
        else name
    )


def ran(grid: Grid, user: str) -> set[str]:
    """The programs that ran as this user."""
    words = _log(grid).read_text().split("\0")
    return {
        program_of(command)
        for name, command in zip(words[::2], words[1::2], strict=False)
        if name == user
    }


def test_admin_login__jobs_of_each_end__customers_run_only_their_own_submissions(
    grid: Grid, customer: Account
) -> None:
    ended, cancelled, longer = (
        grid.submit_script(customer, script) for script in (REQUEUEABLE, SLEEPS, SLEEPS)
    )
    assert wait_for_end(grid, ended, PATIENCE_S).status is ChainStatus.FINISHED
    slurm_id = running(grid, cancelled)
    grid.chain.customers.cancel_job(customer, cancelled)
    assert wait_for_end(grid, cancelled, PATIENCE_S).status is ChainStatus.CANCELLED
    slurm_id = running(grid, longer)
    minutes = row_of(grid, longer).time_limit_min
    grid.chain.customers.top_up_job(
        customer, longer, 15 * ChainPrices().of(grid.chain.job(longer).definition)
    )
    wait_until(
        lambda: row_of(grid, longer).applied_limit_min > minutes,
        "the longer limit",
        PATIENCE_S,
        0.1,
    )
    as_customer(grid, customer, "scancel", str(slurm_id))
    wait_for_end(grid, longer, PATIENCE_S)
    assert shown(grid, slurm_id, "State") == "CANCELLED"
    assert {"guard", "clock"} <= ran(grid, customer.address.lower()) <= OF_A_CUSTOMER
    exercised = {
        "squeue",
        "scancel",
        "scontrol update",
        "scontrol requeuehold",
        "homes",
    }
    if grid.environment["SLURM_ACCOUNTING"] == "true":
        exercised.add("sacctmgr")
    assert exercised <= ran(grid, admin()) <= OF_THE_ADMIN
