"""What the operator sees and does, on a whole grid."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devgrid import REPOSITORY
from devgrid.chain.model import Account, ChainPrices
from devgrid.grid import Grid, definition_of
from devgrid.machine import deadline
from devgrid.options import GridOptions
from devgrid.processes import wait_until
from devgrid.services.workflow import Resources
from supervisor_tasks.jobs.model import ChainStatus
from tests.support.commands import Result
from tests.support.commands import supervisor as command
from tests.support.grid_assertions import (
    rows,
    slurm_ids,
    slurm_of,
    wait_for,
    wait_for_end,
)
from tests.support.grids import BLOCK_TIME_S
from tests.support.receivers import WebhookReceiver, webhook_receiver
from tests.support.slurmctld_state import configured

SCANCEL = """#!/bin/sh
if [ -e '{broken}' ]; then
    echo 'scancel: error: Kill job error on job id: Access/permission denied' >&2
    exit 1
fi
exec /usr/bin/scancel "$@"
"""
SCONTROL = """#!/bin/sh
case "$*" in *TimeLimit=*)
    if [ -e '{broken}' ]; then
        echo 'slurm_update error: Access/permission denied' >&2
        exit 1
    fi
esac
exec /usr/bin/scontrol "$@"
"""

# a command that finds no slurmctld tries for half of it, and ten tries go before the alarm
GIVES_UP_SOON = "MessageTimeout=4"


@pytest.fixture(scope="module")
def broken_scancel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file is there, SLURM cancels no job and sets no time limit."""
    return tmp_path_factory.mktemp("slurm") / "broken"


@pytest.fixture(scope="module")
def webhook() -> Iterator[WebhookReceiver]:
    """What gets the messages about alarms. It refuses the first one once."""
    with webhook_receiver() as receiver:
        receiver.statuses = [503]
        yield receiver


@pytest.fixture(scope="module")
def grid(broken_scancel: Path, webhook: WebhookReceiver) -> Iterator[Grid]:
    scancel, scontrol = (
        broken_scancel.with_name("scancel"),
        broken_scancel.with_name("scontrol"),
    )
    scancel.write_text(SCANCEL.format(broken=broken_scancel))
    scontrol.write_text(SCONTROL.format(broken=broken_scancel))
    scancel.chmod(0o755)
    scontrol.chmod(0o755)
    overrides = {
        "SLURM_SCANCEL_PATH": str(scancel),
        "SLURM_SCONTROL_PATH": str(scontrol),
        "SLURM_ACCOUNTING": "false",
        "SLURM_RETRY_INTERVAL_S": "0.5",
    }
    overrides |= {"NOTIFY_WEBHOOK_URL": webhook.url, "NOTIFY_STABLE_S": "0"}
    running = Grid.start(
        GridOptions(
            block_time_s=BLOCK_TIME_S,
            accounting=True,
            overrides=overrides,
        )
    )
    try:
        yield running
    finally:
        running.stop()


def run(grid: Grid, *words: str) -> Result:
    # the command needs no key
    environment = {
        name: value
        for name, value in grid.environment.items()
        if "PRIVATE_KEY" not in name
    }
    return command(*words, env=environment)


def supervisor(grid: Grid, *words: str) -> str:
    result = run(grid, *words)
    assert result.exit_code == 0, result.output
    return result.stdout


def ask(grid: Grid, *words: str) -> Any:
    return json.loads(supervisor(grid, *words, "-o", "json"))


def alarms(grid: Grid) -> set[str]:
    return {alarm["name"] for alarm in ask(grid, "alarm", "list")}


def until_alarm(grid: Grid, name: str, timeout_s: float = 60.0) -> None:
    wait_until(lambda: name in alarms(grid), f"the alarm {name}", timeout_s, 0.3)


def messages(webhook: WebhookReceiver, alarm: str) -> list[str]:
    """What the webhook was told of an alarm, without repeated messages."""
    return list(
        {
            message["id"]: message["status"]
            for message in webhook.got
            if message["alarm"] == alarm
        }.values()
    )


def test_slurm__away__is_an_alarm_with_messages_until_it_answers(
    grid: Grid, webhook: WebhookReceiver
) -> None:
    grid.processes.kill(grid.processes.find("slurmctld"))
    with configured(slurm_of(grid), GIVES_UP_SOON):
        grid.fleet.start(flower=False)
        wait_until(
            lambda: run(grid, "alarm", "list").exit_code == 0,
            "the ledger to know the cluster",
            60.0,
            0.5,
        )
        until_alarm(grid, "slurm_not_answering", 180.0)
    (told,) = [
        alarm
        for alarm in ask(grid, "alarm", "list")
        if alarm["name"] == "slurm_not_answering"
    ]
    assert told["details"]["tries"] >= 10
    wait_until(lambda: _healthy(grid), "health, although SLURM is away", 90.0, 0.5)
    grid.processes.start_again("slurmctld")
    wait_until(
        lambda: alarms(grid) == {"slurm_accounting_unused"},
        "the alarm to be over",
        90.0,
        0.5,
    )
    both = ["firing", "resolved"]  # by beat and the worker
    wait_until(
        lambda: messages(webhook, "slurm_not_answering") == both,
        "the messages",
        60.0,
        0.2,
    )
    assert len({message["id"] for message in webhook.got}) < len(webhook.got), (
        "the refused one came again"
    )


def _healthy(grid: Grid) -> bool:
    return run(grid, "health").exit_code == 0


def shown_job(grid: Grid, job_id: str) -> str:
    (slurm_id,) = slurm_ids(grid, job_id)
    asked = ("scontrol", "show", "job", str(slurm_id), "--oneliner")
    return slurm_of(grid).run(*asked).stdout


def until_receipts_are_read(grid: Grid) -> None:
    wait_until(
        lambda: ask(grid, "tx", "list", "--open") == [],
        "the receipts to be read",
        60.0,
        0.2,
    )


def until_blocks_are_read(grid: Grid) -> None:
    head = grid.chain.block_number()
    wait_until(
        lambda: ask(grid, "status")["cursors"]["contract"] >= head,
        "the blocks to be read",
        60.0,
        0.2,
    )


def test_cancellation__parked__shows_slurms_words_and_is_retried(
    grid: Grid, customer: Account, broken_scancel: Path
) -> None:
    job_id = grid.submit_script(customer, "#!/bin/bash\nsleep 600\n")
    wait_for(grid, job_id, {ChainStatus.RUNNING})
    until_receipts_are_read(grid)
    broken_scancel.touch()
    grid.chain.customers.cancel_job(customer, job_id)
    wait_until(
        lambda: ask(grid, "effect", "list", "--state", "parked") != [],
        "the cancellation to be parked",
        60.0,
        0.3,
    )
    # news of the job has a parked effect tried once more, and the customer's request
    # comes twice: in a receipt, and when the block is read
    until_receipts_are_read(grid)
    until_blocks_are_read(grid)
    wait_until(
        lambda: ask(grid, "effect", "list", "--state", "parked") != [],
        "the cancellation to be parked again",
        60.0,
        0.3,
    )
    (effect,) = ask(grid, "effect", "list", "--state", "parked")
    assert (effect["subject"], effect["kind"]) == (job_id, "cancel")
    assert "Access/permission denied" in effect["last_error"]
    assert effect["evidence"]["error"] == "SlurmRejectedError"
    until_alarm(grid, "effect_parked")
    assert "Access/permission denied" in supervisor(grid, "job", "show", job_id[:20])
    broken_scancel.unlink()
    supervisor(grid, "job", "retry", "--effect", str(effect["effect"]), "--yes")
    assert wait_for_end(grid, job_id).status is ChainStatus.CANCELLED
    wait_until(
        lambda: "effect_parked" not in alarms(grid), "the alarm to be over", 60.0, 0.3
    )


def test_top_up__slurm_rejects_the_limit__is_parked_and_set_when_retried(
    grid: Grid, customer: Account, broken_scancel: Path
) -> None:
    job_id = grid.submit_script(customer, "#!/bin/bash\nsleep 600\n", minutes=10)
    wait_for(grid, job_id, {ChainStatus.RUNNING})
    broken_scancel.touch()
    minute_wei = ChainPrices().of(definition_of("", Resources(memPerCpu=100)))
    grid.chain.customers.top_up_job(customer, job_id, 5 * minute_wei)
    until_blocks_are_read(grid)
    wait_until(
        lambda: ask(grid, "effect", "list", "--state", "parked") != [],
        "the top-up to be parked",
        60.0,
        0.3,
    )
    (effect,) = ask(grid, "effect", "list", "--state", "parked")
    assert (effect["subject"], effect["kind"]) == (job_id, "top_up")
    assert "Access/permission denied" in effect["last_error"]
    until_alarm(grid, "effect_parked")
    shown = shown_job(grid, job_id)
    assert "JobState=RUNNING" in shown
    assert "TimeLimit=00:10:00" in shown
    broken_scancel.unlink()
    supervisor(grid, "job", "retry", "--effect", str(effect["effect"]), "--yes")
    wait_until(
        lambda: "TimeLimit=00:15:00" in shown_job(grid, job_id),
        "the limit to be raised",
        60.0,
        0.1,
    )
    wait_until(
        lambda: "effect_parked" not in alarms(grid), "the alarm to be over", 60.0, 0.3
    )
    grid.chain.customers.cancel_job(customer, job_id)
    assert wait_for_end(grid, job_id).status is ChainStatus.CANCELLED


def test_settle__running_job__contract_hears_it_and_slurm_stops(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, "#!/bin/bash\nsleep 600\n")
    wait_for(grid, job_id, {ChainStatus.RUNNING})
    until_receipts_are_read(grid)
    words = (
        "--status",
        "FAILED",
        "--minutes",
        "3",
        "--reason",
        "the node burnt down",
        "--yes",
    )
    supervisor(grid, "job", "settle", job_id, *words)
    assert wait_for_end(grid, job_id).status is ChainStatus.FAILED
    facts = ask(grid, "job", "show", job_id)
    assert facts["job"]["settled_by_operator"] is True
    shown = ["squeue", "--noheader", "--states=all", f"--name={job_id}", "--format=%T"]
    wait_until(
        lambda: slurm_of(grid).run(*shown).stdout.strip() == "CANCELLED",
        "SLURM to stop it",
        60.0,
        0.3,
    )
    wait_until(
        lambda: ask(grid, "job", "show", job_id)["job"]["state"] == "SETTLED",
        "the ledger to know",
        60.0,
        0.3,
    )
    sources = {
        entry["source"] for entry in ask(grid, "job", "show", job_id)["timeline"]
    }
    assert sources >= {"journal", "effect", "transaction"}


def test_status__of_a_fleet_at_work__is_healthy(grid: Grid) -> None:
    seen: list[Any] = []

    def has_no_problem() -> bool:  # a periodic run may be late for a moment
        seen.append(ask(grid, "status"))
        return not seen[-1]["problems"]

    wait_until(has_no_problem, "a fleet without problems", 60.0, 0.5)
    status = seen[-1]
    assert status["wallet"]["next_nonce"] > 0
    swept = ask(grid, "sweep", "run", "--yes")
    assert "operator" in json.dumps(swept["report"])
    # the fleet may have made another one since
    assert swept in ask(grid, "sweep", "list")
    assert {
        "dispatch_due_effects",
        "claim",
        "scan",
        "check_alarms",
        "check_slurm",
        "slurm",
    } <= set(status["periodic_run_ages_s"])


def test_claims__paused__nothing_is_claimed_until_they_are_resumed(
    grid: Grid, customer: Account
) -> None:
    supervisor(grid, "claims", "pause", "--reason", "maintenance", "--yes")
    job_id = grid.submit_script(customer, "#!/bin/bash\ntrue\n")
    wait_for(grid, job_id, {ChainStatus.META_SCHEDULED})

    def claims_looked_for() -> float:
        query = "SELECT extract(epoch FROM succeeded_at)::float8 AS at FROM periodic_runs WHERE name = 'claim'"
        return float(rows(grid, query)[0].at)

    for _ in range(3):
        last = claims_looked_for()
        wait_until(
            lambda last=last: claims_looked_for() > last,  # type: ignore[misc]
            "a look for jobs",
            60.0,
            0.1,
        )
    assert grid.chain.job(job_id).status is ChainStatus.META_SCHEDULED
    supervisor(grid, "claims", "resume", "--yes")
    assert wait_for_end(grid, job_id).status is ChainStatus.FINISHED


def test_rewind__asked_for__is_done_by_the_chains_worker_and_nothing_changes(
    grid: Grid, customer: Account
) -> None:
    job_id = grid.submit_script(customer, "#!/bin/bash\ntrue\n")
    before = wait_for_end(grid, job_id)
    wait_until(
        lambda: ask(grid, "job", "show", job_id)["job"]["state"] == "SETTLED",
        "the ledger to know",
        60.0,
        0.3,
    )
    # the hashes of 64 blocks are kept: none is mined until the command has asked
    with grid.no_blocks():
        block = str(grid.chain.block_number() - 40)
        argv = [
            sys.executable,
            "-m",
            "supervisor_tasks.cli",
            "chain",
            "rewind",
            "--to-block",
            block,
            "--yes",
        ]
        subprocess.run(
            argv,
            cwd=REPOSITORY,
            env=grid.environment,
            check=True,
            capture_output=True,
            timeout=deadline(60),
        )
    log = grid.folder / "log" / "worker.log"
    wait_until(lambda: "chain_rewound" in log.read_text(), "the rewind", 60.0, 0.2)
    wait_until(
        lambda: ask(grid, "job", "show", job_id)["job"]["state"] == "SETTLED",
        "the job to be settled again",
        60.0,
        0.3,
    )
    assert grid.chain.job(job_id) == before
