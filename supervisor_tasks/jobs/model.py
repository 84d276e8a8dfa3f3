"""A job: its definition, its states, the effects that it can have, and the reports that
the contract gets. Pure.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NewType

from supervisor_tasks.jobs.billing import SECONDS_PER_MINUTE, billed_minutes
from supervisor_tasks.jobs.runs import Runs, earlier_s, left_min, used_s

JobId = NewType("JobId", str)  # 0x and 64 lowercase hex digits
Address = NewType("Address", str)  # 0x and 40 lowercase hex digits
SlurmId = NewType("SlurmId", int)

MAX_LIMIT_MIN = 2**31 - 1  # SLURM keeps time limits in 32 bits
MAX_COUNT = 2**31 - 1
MAX_SHOWN_CHARACTERS = 80  # characters of a customer's text in a reason


class State(StrEnum):
    """How far a job is."""

    CLAIMED = "CLAIMED"
    """The contract gave us the job."""
    READY = "READY"
    """The script is in the ledger."""
    SUBMITTING = "SUBMITTING"
    """A submission has begun: SLURM may or may not have the job."""
    QUEUED = "QUEUED"
    """SLURM has the job under an id."""
    RUNNING = "RUNNING"
    """SLURM runs the job."""
    ENDED = "ENDED"
    """The end is known, or decided: status, seconds, exit status."""
    REFUSED = "REFUSED"
    """The job is given back to the contract, or the contract has taken it from us."""
    SETTLED = "SETTLED"
    """The contract has the job's end."""


BEFORE_SLURM = (State.CLAIMED, State.READY, State.SUBMITTING)
IN_SLURM = (State.QUEUED, State.RUNNING)

# States are a partial order: no event moves a job to a lower rank. READY and SUBMITTING
# share one, because a submission that certainly did not happen is made again. There are
# two ways back. A job that slurmctld took and forgot while it waited is submitted again
# (QUEUED to READY). A job that SLURM does not have under its id is searched for (QUEUED
# to SUBMITTING).
RANK = {
    State.CLAIMED: 0,
    State.READY: 1,
    State.SUBMITTING: 1,
    State.QUEUED: 2,
    State.RUNNING: 3,
    State.ENDED: 4,
    State.REFUSED: 4,
    State.SETTLED: 5,
}


class ChainStatus(IntEnum):
    """JobStatus of the contract."""

    PENDING = 0
    META_SCHEDULED = 1
    SCHEDULED = 2
    RUNNING = 3
    CANCELLED = 4
    FINISHED = 5
    FAILED = 6
    OUT_OF_CREDITS = 7
    PANICKED = 8

    @property
    def is_final(self) -> bool:
        """Whether the contract accepts no further change."""
        return self >= ChainStatus.CANCELLED

    @property
    def is_active(self) -> bool:
        """Whether a provider has the job, and has not ended it."""
        return self in (ChainStatus.SCHEDULED, ChainStatus.RUNNING)


class EffectKind(StrEnum):
    """The kinds of effect."""

    FETCH = "fetch"
    SUBMIT = "submit"
    POLL_SLURM = "poll_slurm"
    REPORT = "report"
    RETURN_JOB = "return_job"
    CANCEL = "cancel"
    TOP_UP = "top_up"
    NOTIFY_CUSTOMER = "notify_customer"
    ACCOUNT = "account"
    """The subject is a customer's address."""
    BENCHMARK = "benchmark"
    """The subject is the number of a benchmark run."""

    @property
    def of_job(self) -> bool:
        """Whether the subject is a job."""
        return self in JOB_EFFECTS


JOB_EFFECTS = frozenset(EffectKind) - {EffectKind.ACCOUNT, EffectKind.BENCHMARK}

# The kinds that have a purpose in each state. When a job enters a state, open effects
# of all other kinds are closed.
EFFECTS_BY_STATE = {
    State.CLAIMED: {EffectKind.FETCH},
    State.READY: {EffectKind.SUBMIT},
    State.SUBMITTING: {EffectKind.SUBMIT},
    State.QUEUED: {EffectKind.POLL_SLURM, EffectKind.CANCEL, EffectKind.TOP_UP},
    State.RUNNING: {
        EffectKind.POLL_SLURM,
        EffectKind.CANCEL,
        EffectKind.TOP_UP,
        EffectKind.REPORT,
    },
    # and CANCEL if SLURM may still run the job
    State.ENDED: {EffectKind.REPORT, EffectKind.NOTIFY_CUSTOMER},
    State.REFUSED: {
        EffectKind.RETURN_JOB,
        EffectKind.NOTIFY_CUSTOMER,
        EffectKind.CANCEL,
    },
    State.SETTLED: {EffectKind.CANCEL, EffectKind.NOTIFY_CUSTOMER},
}


@dataclass(frozen=True, slots=True)
class Effect:
    """Work to do for a job, `due_in_s` seconds from now. If the effect is open already,
    it becomes due earlier.
    """

    kind: EffectKind
    due_in_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The part of the contract's JobDefinition that sbatch requests. `gpus` is per
    job.
    """

    gpus: int
    mem_per_cpu_mb: int
    cpus_per_task: int
    ntasks: int
    batch_location_hash: str

    @property
    def cpus(self) -> int:
        """CPUs of the whole job."""
        return self.cpus_per_task * self.ntasks

    @property
    def memory_mb(self) -> int:
        """Memory of the whole job."""
        return self.mem_per_cpu_mb * self.cpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended, as the contract must show it. `exit_status` is the raw wait(2)
    status.
    """

    status: ChainStatus
    elapsed_s: int = 0
    exit_status: int = 0
    reason: str = ""

    @property
    def minutes(self) -> int:
        """The minutes to bill."""
        return billed_minutes(self.elapsed_s)


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of a job that SLURM cancels because the supervisor wants it, and the
    reason that the customer gets.
    """

    status: ChainStatus
    reason: str


@dataclass(frozen=True, slots=True)
class TopUp:
    """Minutes that the customer added. `key` names the event on chain. `block` is None
    while a reorganisation has it in doubt.
    """

    key: str
    minutes: int
    block: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the ledger knows it.

    On chain: `claim_key` names the claim (transaction hash, and which of its logs), and
    `claim_position` is its place (block, log index): `time_limit_min` contains the
    minutes of all top-ups before it.
    `chain_position` is the place (block, log index) of the contract's last event about
    the job: an earlier event that arrives later is void. `last_event_block` is the
    highest block with an event about the job: a reorganisation of that block puts the
    event in doubt. What it took away can come back until the block
    `reorg_deadline_block`.

    In SLURM: `slurm_submit_s` is when SLURM got the job by its own clock (Unix time).
    Together with the id it distinguishes the job from a later one with the same id.
    `applied_limit_min` is the last limit that SLURM got (None: not known, or given up
    by the operator). `poll_count` counts the looks since the last news. `runs` are
    those of the present SLURM job. `put_back` counts how often the job was put back to
    its paid size. `stop` is set when the supervisor has SLURM end the job.
    `may_run_again`: SLURM has ended the job, and its owner can still requeue it; the
    end is reported when SLURM must reject that. Only the ledger keeps the script: it
    may be long.
    """

    job_id: JobId
    customer: Address
    provider: Address
    claim_key: str
    definition: Definition
    time_limit_min: int
    state: State = State.CLAIMED
    chain_status: ChainStatus = ChainStatus.SCHEDULED
    claim_position: tuple[int, int] = (0, 0)
    chain_position: tuple[int, int] = (0, 0)
    last_event_block: int = 0
    reorg_deadline_block: int | None = None
    has_script: bool = False
    grid_logger_url: str = ""
    slurm_id: SlurmId | None = None
    slurm_submit_s: int | None = None
    top_ups: tuple[TopUp, ...] = ()
    applied_limit_min: int | None = None
    cancel_requested: bool = False
    poll_count: int = 0
    outcome: Outcome | None = None
    settled_by_operator: bool = False
    status_message: str = ""
    runs: Runs = ()
    put_back: int = 0
    stop: Stop | None = None
    may_run_again: bool = False

    @property
    def limit_min(self) -> int:
        """The paid minutes for all runs together: the time limit at the claim and all
        top-ups.
        """
        added_min = sum(top_up.minutes for top_up in self.top_ups)
        return min(self.time_limit_min + added_min, MAX_LIMIT_MIN)

    @property
    def run_limit_min(self) -> int:
        """The time limit for the present run in SLURM: the paid time less the earlier
        runs.
        """
        return left_min(self.limit_min, self.runs)

    @property
    def earlier_s(self) -> int:
        """The seconds of the runs before the present one."""
        return earlier_s(self.runs)

    @property
    def left_s(self) -> int:
        """The seconds of the paid time that were left at the last look; below 0 when
        SLURM lets the job overrun.
        """
        return self.limit_min * SECONDS_PER_MINUTE - used_s(self.runs)

    @property
    def wants_cancel(self) -> bool:
        """Whether SLURM must end the job: the customer wants that, or the
        supervisor.
        """
        return self.cancel_requested or self.stop is not None

    @property
    def claim_reverted_by_reorg(self) -> bool:
        """Whether a reorganisation took our claim away, and the claim can still come
        back. Meanwhile the job goes on in SLURM, no new work begins, and nothing is
        reported.
        """
        return (
            self.reorg_deadline_block is not None
            and self.chain_status < ChainStatus.SCHEDULED
        )


# what an event makes of a job, and the work that follows
Next = tuple[Job, tuple[Effect, ...]]


def _may_still_run(job: Job) -> bool:
    """Whether SLURM may still run the job, or could run it once more though it must
    not.
    """
    if job.settled_by_operator:
        return True
    if job.outcome is not None and job.outcome.status is ChainStatus.PANICKED:
        return True
    if job.state is not State.ENDED:
        return False
    return job.stop is not None or job.slurm_id is None or job.may_run_again


def obsolete_effects(job: Job) -> frozenset[EffectKind]:
    """The kinds of effect that have no purpose for the job as it is now."""
    pointless = set(JOB_EFFECTS) - EFFECTS_BY_STATE[job.state]
    if _may_still_run(job):
        pointless.discard(EffectKind.CANCEL)
    if not pending_reports(job):
        pointless.add(EffectKind.REPORT)
    if is_final(job):
        pointless.add(EffectKind.RETURN_JOB)
    if job.claim_reverted_by_reorg:
        pointless |= {EffectKind.FETCH, EffectKind.RETURN_JOB}
        if job.state is State.READY:
            pointless.add(EffectKind.SUBMIT)
    if job.state in IN_SLURM and not job.wants_cancel:
        pointless.add(EffectKind.CANCEL)
    return frozenset(pointless)


def is_final(job: Job) -> bool:
    """Whether nothing is left to decide about the job: its status on chain is final, or
    it is not ours any more.
    """
    return is_final_status(job.state, job.chain_status)


def is_final_status(state: State, chain_status: ChainStatus) -> bool:
    """Whether nothing is left to decide about a job in this state with this status on
    chain.
    """
    if state is State.REFUSED:
        return chain_status < ChainStatus.SCHEDULED
    return state is State.SETTLED


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    """One call of providerSetJobStatus."""

    status: ChainStatus
    minutes: int = 0
    reason: str = ""
    exit_status: int = 0


def pending_reports(job: Job) -> tuple[StatusUpdate, ...]:
    """The calls that bring the contract from its present status to the true one, in
    order.

    The contract requires RUNNING before an end, except for a job that was cancelled
    before it ran, or that panicked because its end is unknown.
    """
    if job.chain_status not in (ChainStatus.SCHEDULED, ChainStatus.RUNNING):
        return ()  # not ours, or the claim is in doubt, or the contract has an end
    updates = list[StatusUpdate]()
    if job.chain_status is ChainStatus.SCHEDULED and _needs_running(job):
        updates.append(StatusUpdate(ChainStatus.RUNNING))
    outcome = job.outcome
    if outcome is not None and not job.may_run_again:
        end = StatusUpdate(
            outcome.status, outcome.minutes, outcome.reason, outcome.exit_status
        )
        updates.append(end)
    return tuple(updates)


def _needs_running(job: Job) -> bool:
    """Whether the contract must show RUNNING now, or before the end of the job."""
    if job.outcome is None:
        return job.state is State.RUNNING
    if job.outcome.elapsed_s != 0:
        return True
    return job.outcome.status not in (ChainStatus.CANCELLED, ChainStatus.PANICKED)


def validation_error(definition: Definition, time_limit_min: int) -> str | None:
    """Why the job cannot be submitted with this definition, or None. To SLURM, zero
    means "no limit" or "all of the node". A hash with "\\x" stands for bytes that are
    no text (chain/abi_codec.py): no service can be asked for its script.
    """
    for name, found, least in (
        ("time limit (minutes)", time_limit_min, 1),
        ("ntasks", definition.ntasks, 1),
        ("cpusPerTask", definition.cpus_per_task, 1),
        ("memPerCpu (MB)", definition.mem_per_cpu_mb, 1),
        ("gpus", definition.gpus, 0),
    ):
        if not least <= found <= MAX_COUNT:
            return f"job definition rejected: {name} is {found}; expected {least} to {MAX_COUNT}"
    if "\\x" in definition.batch_location_hash:
        shown = definition.batch_location_hash[:MAX_SHOWN_CHARACTERS]
        return f"job definition rejected: batchLocationHash is {shown}; expected a text"
    return None
