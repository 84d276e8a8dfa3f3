"""A job that has ended in the ledger is requeued in the seconds before the supervisor
has SLURM reject that. Its end is not reported before, so a run in between is billed.
"""

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import text

from devgrid.machine import deadline
from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.contract import Contract
from supervisor_tasks.context import ReconciliationServices, WorkerContext
from supervisor_tasks.jobs.cancel import cancel
from supervisor_tasks.jobs.events import ChainStatusObserved
from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    EffectKind,
    JobId,
    SlurmId,
    State,
    StatusUpdate,
    pending_reports,
)
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.reconciliation.run import sweep
from supervisor_tasks.slurm.parsers import SlurmUnavailableError
from tests.support.effect_batches import carry_out
from tests.support.marks import in_chaos
from tests.support.requeueing import SETTLED_AFTER_S
from tests.support.submission_env import (
    CUSTOMER,
    PATHS,
    PATIENCE_S,
    SubmissionEnv,
)

NO_ANSWER = (
    "#!/bin/sh\necho 'scancel: error: Unable to contact slurm controller' >&2\nexit 1\n"
)
# each run ends when its own file is there
SCRIPT = "#!/bin/bash\nuntil [ -e ~/{gate}$SLURM_RESTART_COUNT ]; do sleep 0.1; done\n"


@pytest.fixture
def site(submission_env: SubmissionEnv) -> Iterator[WorkerContext]:
    def no_chain(address: Address) -> Contract:
        raise AssertionError(f"there is no chain for {address}")

    cluster = submission_env.cluster()
    site = submission_env.site(cluster)
    services = ReconciliationServices(
        contract_of=no_chain,
        every_s=900.0,
        grace_s=300.0,
        start_block=0,
    )
    yield replace(site, reconciliation_services=services)
    cluster.login_node.ssh.close()
    site.ledger.holder.close()


@pytest.fixture
def without_scancel(submission_env: SubmissionEnv) -> Iterator[WorkerContext]:
    """The site, where slurmctld does not answer after the orders by scontrol."""
    scancel = submission_env.processes.folder / "scancel"
    scancel.write_text(NO_ANSWER)
    scancel.chmod(0o755)
    cluster = submission_env.cluster(paths=replace(PATHS, scancel=str(scancel)))
    broken = submission_env.site(cluster)
    yield broken
    cluster.login_node.ssh.close()
    broken.ledger.holder.close()


def run_again(submission_env: SubmissionEnv, slurm_id: SlurmId, seconds: int) -> None:
    """Let the requeued job run for so many seconds. SLURM would hold it for two
    minutes. If it begins before its node has ended the old run, the node refuses it.
    """
    node_is_ready_s = time.monotonic() + deadline(SETTLED_AFTER_S)

    def has_run() -> bool:
        if submission_env.field(slurm_id, "State") != "PENDING":
            return submission_env.seconds_run(slurm_id) >= seconds
        if time.monotonic() > node_is_ready_s:
            submission_env.set(slurm_id, StartTime="now")
        return False

    wait_until(has_run, "the later run", PATIENCE_S, 1.0)


def run_after_end(site: WorkerContext) -> dict[str, int]:
    """The jobs of the alarm."""
    for alarm in site.ledger.alarms.all():
        if alarm.name == AlarmName.RUNS_AFTER_END:
            some: dict[str, int] = alarm.details["some"]
            return some
    return {}


def cancel_until_done(
    submission_env: SubmissionEnv, site: WorkerContext, job_id: JobId
) -> None:
    """Carry out the job's cancel again and again, as the fleet does."""

    def is_done() -> bool:
        effect_id = submission_env.effect_id(job_id, EffectKind.CANCEL)
        if effect_id:
            carry_out(site, effect_id)
        return not submission_env.effect_id(job_id, EffectKind.CANCEL)

    wait_until(is_done, "the cancel", PATIENCE_S, 0.3)


def looked_until(
    submission_env: SubmissionEnv, site: WorkerContext, job_id: JobId, state: State
) -> None:
    wait_until(
        lambda: submission_env.look(site, job_id).state is state,
        f"{job_id} to be {state}",
        PATIENCE_S,
        0.2,
    )


def ended_and_requeued(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    *changes: str,
    gate: str = "",
) -> tuple[JobId, SlurmId]:
    """A job that was requeued after its end, before SLURM was asked to refuse that. Its
    owner makes other changes, too.
    """
    gate = gate or f"enough-{secrets.token_hex(4)}"
    job_id = submission_env.new_job(site, SCRIPT.format(gate=gate))
    slurm_id = submission_env.carry_out(site, job_id).slurm_id
    assert slurm_id is not None
    looked_until(submission_env, site, job_id, State.RUNNING)
    submission_env.set(slurm_id, Requeue="1")
    (submission_env.slurm.users.home(CUSTOMER) / gate).touch()
    looked_until(submission_env, site, job_id, State.ENDED)
    with submission_env.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE effects SET done_at = now() WHERE job_id = :id AND kind = 'cancel'"
            ),
            {"id": job_id},
        )
    assert (
        submission_env.slurm.run("scontrol", "requeue", str(slurm_id)).returncode == 0
    )
    if changes:
        submission_env.set(slurm_id, **dict(change.split("=") for change in changes))
    wait_until(
        lambda: submission_env.field(slurm_id, "State") == "PENDING",
        "the requeue",
        PATIENCE_S,
        0.1,
    )
    return job_id, slurm_id


@pytest.mark.parametrize(
    "changes", [(), ("JobName=other", "Comment=other")], ids=["as it was", "renamed"]
)
@pytest.mark.parametrize(
    "settled", [False, in_chaos(True)], ids=["to be reported", "settled"]
)
def test_sweep__job_requeued_after_its_end__cancels_it_and_calls_the_operator(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    changes: tuple[str, ...],
    settled: bool,
) -> None:
    job_id, slurm_id = ended_and_requeued(submission_env, site, *changes)
    if settled:
        site.ledger.record(JobChange(job_id, ChainStatusObserved(ChainStatus.FINISHED)))
    before = site.ledger.jobs([job_id])[job_id]
    sweep(site, "a test")
    assert run_after_end(site) == {job_id: slurm_id}
    carry_out(site, submission_env.effect_id(job_id, EffectKind.CANCEL))
    wait_until(
        lambda: submission_env.field(slurm_id, "State") == "CANCELLED",
        "the cancellation",
        PATIENCE_S,
        0.1,
    )
    assert submission_env.field(slurm_id, "Requeue") == "0"
    assert site.ledger.jobs([job_id])[job_id].outcome == before.outcome


@pytest.mark.parametrize(
    "ends_itself", [False, True], ids=["until it is cancelled", "to its own end"]
)
def test_sweep__later_run_has_begun__is_billed_as_the_end_is_not_reported_yet(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    without_scancel: WorkerContext,
    ends_itself: bool,
) -> None:
    gate = f"enough-{secrets.token_hex(4)}"
    job_id, slurm_id = ended_and_requeued(submission_env, site, gate=gate)
    before = site.ledger.jobs([job_id])[job_id]
    assert before.outcome is not None
    assert pending_reports(before) == (StatusUpdate(ChainStatus.RUNNING),)
    run_again(submission_env, slurm_id, 3)
    ran_s = 0
    if ends_itself:
        (submission_env.slurm.users.home(CUSTOMER) / f"{gate}1").touch()
        wait_until(
            lambda: submission_env.field(slurm_id, "State") == "COMPLETED",
            "the end of the later run",
            PATIENCE_S,
            0.1,
        )
        ran_s = submission_env.seconds_run(slurm_id)
        # fails between the orders: the next try sees the run that is on hold
        with pytest.raises(SlurmUnavailableError):
            cancel(without_scancel, before)
    sweep(site, "a test")
    cancel_until_done(submission_env, site, job_id)
    after = site.ledger.jobs([job_id])[job_id]
    assert after.outcome is not None
    ran_s = ran_s or submission_env.seconds_run(slurm_id)
    assert ran_s >= 3
    assert after.outcome == replace(
        before.outcome, elapsed_s=before.outcome.elapsed_s + ran_s
    )
    assert pending_reports(after)[-1].status is ChainStatus.FINISHED
    assert submission_env.effect_id(job_id, EffectKind.REPORT)
    assert run_after_end(site)[job_id] == slurm_id


@pytest.mark.parametrize("ended_ago", ["0", "2 hours"])
def test_cancel__slurm_cannot_be_told_to_reject_a_requeue__reports_after_an_hour(
    submission_env: SubmissionEnv,
    site: WorkerContext,
    without_scancel: WorkerContext,
    ended_ago: str,
) -> None:
    job_id, _ = ended_and_requeued(submission_env, site)
    with submission_env.engine.begin() as connection:
        earlier = "UPDATE events SET at = at - CAST(:ago AS interval) WHERE job_id = :id AND name = 'SlurmCompleted'"
        connection.execute(text(earlier), {"id": job_id, "ago": ended_ago})
    with pytest.raises(SlurmUnavailableError):
        cancel(without_scancel, site.ledger.jobs([job_id])[job_id])
    reports = pending_reports(site.ledger.jobs([job_id])[job_id])
    assert (reports[-1].status is ChainStatus.FINISHED) == (ended_ago != "0")
    cancel(site, site.ledger.jobs([job_id])[job_id])


def test_sweep__later_run_of_a_settled_job__is_cancelled_and_the_bill_stays(
    submission_env: SubmissionEnv, site: WorkerContext
) -> None:
    job_id, slurm_id = ended_and_requeued(submission_env, site)
    site.ledger.record(JobChange(job_id, ChainStatusObserved(ChainStatus.FINISHED)))
    before = site.ledger.jobs([job_id])[job_id]
    run_again(submission_env, slurm_id, 1)
    sweep(site, "a test")
    cancel_until_done(submission_env, site, job_id)
    wait_until(
        lambda: submission_env.field(slurm_id, "State") == "CANCELLED",
        "the cancellation",
        PATIENCE_S,
        0.1,
    )
    assert site.ledger.jobs([job_id])[job_id].outcome == before.outcome
