"""A job that has ended in the ledger is requeued in the seconds before the supervisor
has SLURM reject that.
"""

import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import text

from devgrid.processes import wait_until
from supervisor_tasks.alarms.alarm_names import AlarmName
from supervisor_tasks.chain.contract import Contract
from supervisor_tasks.context import ReconciliationServices, WorkerContext
from supervisor_tasks.jobs.events import ChainStatusObserved
from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    EffectKind,
    JobId,
    SlurmId,
    State,
)
from supervisor_tasks.ledger.ledger import JobChange
from supervisor_tasks.reconciliation.run import sweep
from tests.support.effect_batches import carry_out
from tests.support.submission_env import CUSTOMER, PATIENCE_S, SubmissionEnv

UNTIL_REQUEUED = '#!/bin/bash\n[ -n "$SLURM_RESTART_COUNT" ] && exec sleep 600\nuntil [ -e ~/{gate} ]; do sleep 0.1; done\n'


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
    submission_env: SubmissionEnv, site: WorkerContext, *changes: str
) -> tuple[JobId, SlurmId]:
    """A job that was requeued after its end, before SLURM was asked to refuse that. Its
    owner makes other changes, too.
    """
    gate = f"enough-{secrets.token_hex(4)}"
    job_id = submission_env.new_job(site, UNTIL_REQUEUED.format(gate=gate))
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
@pytest.mark.parametrize("settled", [False, True], ids=["to be reported", "settled"])
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
    alarm = next(
        alarm
        for alarm in site.ledger.alarms.all()
        if alarm.name == AlarmName.RUNS_AFTER_END
    )
    assert alarm.details["some"] == {job_id: slurm_id}
    carry_out(site, submission_env.effect_id(job_id, EffectKind.CANCEL))
    wait_until(
        lambda: submission_env.field(slurm_id, "State") == "CANCELLED",
        "the cancellation",
        PATIENCE_S,
        0.1,
    )
    assert submission_env.field(slurm_id, "Requeue") == "0"
    assert site.ledger.jobs([job_id])[job_id].outcome == before.outcome
