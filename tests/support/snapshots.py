"""Snapshots of ledger, contract and SLURM, as the rules of a sweep get them."""

from dataclasses import replace
from typing import Any

from supervisor_tasks.jobs.events import Claimed
from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    Definition,
    EffectKind,
    JobId,
    SlurmId,
    State,
)
from supervisor_tasks.reconciliation.models import JobSummary, OnChainJob
from supervisor_tasks.reconciliation.snapshot import Snapshot, Trace
from supervisor_tasks.slurm.parsers import JobRecord
from supervisor_tasks.slurm.squeue import SqueueRow

US = Address("0x" + "a" * 40)
OTHERS = Address("0x" + "b" * 40)
CUSTOMER = Address("0x" + "c" * 40)
STRANGER = "0x" + "d" * 40
OUR_COMMENT = "supervisor here:3000"
POLLED = frozenset({EffectKind.POLL_SLURM})
GRACE_S = 300.0
WAITS: dict[str, Any] = {"state": State.QUEUED, "chain_status": ChainStatus.SCHEDULED}


def name(number: int) -> JobId:
    """The id of the job with this number, which is its name in SLURM."""
    return JobId(f"0x{number:064x}")


def known(number: int = 1, state: State = State.RUNNING, **changes: Any) -> JobSummary:
    """A job as the ledger has it, submitted with the SLURM id of its number."""
    base = JobSummary(
        job_id=name(number),
        customer=CUSTOMER,
        provider=US,
        state=state,
        chain_status=ChainStatus.RUNNING
        if state is State.RUNNING
        else ChainStatus.SCHEDULED,
        slurm_id=SlurmId(number),
        open=frozenset(
            {
                EffectKind.POLL_SLURM,
                EffectKind.SUBMIT,
                EffectKind.FETCH,
                EffectKind.REPORT,
                EffectKind.RETURN_JOB,
            }
        ),
    )
    return replace(base, **changes)


def row(
    slurm_id: int = 1, state: str = "RUNNING", number: int | None = None, **changes: Any
) -> SqueueRow:
    """A SLURM job as squeue lists it: with the name of job `number`, or of the job with
    its SLURM id.
    """
    seen = JobRecord(SlurmId(slurm_id), state, 60, 0)
    owner = name(slurm_id if number is None else number)
    base = SqueueRow(SlurmId(slurm_id), CUSTOMER, owner, OUR_COMMENT, "", 1000, seen)
    return replace(base, **changes)


def on_chain_job(
    status: ChainStatus = ChainStatus.RUNNING, provider: Address = US
) -> OnChainJob:
    """A job as the contract has it."""
    return OnChainJob(status, CUSTOMER, provider)


def seeing(
    *jobs: JobSummary, rows: list[SqueueRow] | None = None, **changes: Any
) -> Snapshot:
    """A view in which the contract knows each job as the ledger does, and SLURM lists
    what is in `rows`.
    """
    base = Snapshot(
        provider=US,
        comment=OUR_COMMENT,
        jobs={job.job_id: job for job in jobs},
        chain={
            job.job_id: OnChainJob(job.chain_status, job.customer, job.provider)
            for job in jobs
        },
        block=100,
        slurm={
            listed.slurm_id: listed
            for listed in (rows if rows is not None else [row(99, number=99)])
        },
        grace_s=GRACE_S,
    )
    return replace(base, **changes)


def gone(*jobs: JobSummary, age_s: float | None = None, **changes: Any) -> Snapshot:
    """SLURM lists none of these jobs, and no callback names them."""
    doubts = {} if age_s is None else {f"missing {job.job_id}": age_s for job in jobs}
    return seeing(
        *jobs,
        confirmed_lookups={job.job_id: None for job in jobs},
        previous_doubts=doubts,
        **changes,
    )


def forgetful(number: int, saved: int, **changes: Any) -> Snapshot:
    """SLURM lists another job, and none of ours, which waited; of some of them
    slurmctld had written down that it has them.
    """
    jobs = [known(place, **WAITS) for place in range(1, number + 1)]
    traces = {
        job.job_id: Trace.NONE if job.slurm_id > saved else Trace.UNSURE
        for job in jobs
        if job.slurm_id
    }
    some = frozenset(name(place) for place in range(1, saved + 1))
    return replace(
        gone(*jobs, age_s=GRACE_S * 2, traces=traces, persisted_by_slurm=some),
        **changes,
    )


CLAIM = Claimed(
    job_id=name(1),
    customer=CUSTOMER,
    provider=US,
    claim_key="tx:0",
    definition=Definition(
        gpus=0, mem_per_cpu_mb=1, cpus_per_task=1, ntasks=1, batch_location_hash=""
    ),
    time_limit_min=10,
)
