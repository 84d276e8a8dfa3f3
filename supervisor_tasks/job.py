"""A job: its definition, its states, what may be left to do for it, and what the contract shall hear of it. Pure."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NewType

from supervisor_tasks.billing import SECONDS_PER_MINUTE, billed_minutes
from supervisor_tasks.jobs.runs import Runs, earlier_s, left_min, used_s

JobId = NewType("JobId", str)  # 0x and 64 lowercase hex digits
Address = NewType("Address", str)  # 0x and 40 lowercase hex digits
SlurmId = NewType("SlurmId", int)

GREATEST_LIMIT_MIN = 2**31 - 1  # SLURM keeps time limits in 32 bits
GREATEST_COUNT = 2**31 - 1
SHOWN = 80  # characters of a stranger's text in a reason


class State(StrEnum):
    """Where a job is in its journey."""

    CLAIMED = "CLAIMED"
    READY = "READY"
    SUBMITTING = "SUBMITTING"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    ENDED = "ENDED"
    REFUSED = "REFUSED"
    SETTLED = "SETTLED"


# States are a partial order: no event moves a job to a lower rank. READY and SUBMITTING share one, because a submission
# that certainly did not happen is made again. There are two ways back: what slurmctld took and forgot before anything came of
# it is submitted again (QUEUED to READY), and what SLURM does not have under its id is looked for (QUEUED to SUBMITTING).
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
    def cold(self) -> bool:
        """Whether the contract accepts no further change."""
        return self >= ChainStatus.CANCELLED


class Kind(StrEnum):
    """What can be left to do for a job."""

    FETCH = "fetch"
    SUBMIT = "submit"
    WITNESS = "witness"
    REPORT = "report"
    REFUSE = "refuse"
    CANCEL = "cancel"
    TOP_UP = "top_up"
    TELL_USER = "tell_user"


# An open effect of another kind has lost its purpose and is closed when the job enters the state.
PURPOSEFUL = {
    State.CLAIMED: {Kind.FETCH},
    State.READY: {Kind.SUBMIT},
    State.SUBMITTING: {Kind.SUBMIT},
    State.QUEUED: {Kind.WITNESS, Kind.CANCEL, Kind.TOP_UP},
    State.RUNNING: {Kind.WITNESS, Kind.CANCEL, Kind.TOP_UP, Kind.REPORT},
    State.ENDED: {Kind.REPORT, Kind.TELL_USER},  # and CANCEL where SLURM may run the job on
    State.REFUSED: {Kind.REFUSE, Kind.TELL_USER, Kind.CANCEL},
    State.SETTLED: {Kind.CANCEL, Kind.TELL_USER},
}


@dataclass(frozen=True, slots=True)
class Effect:
    """Something to do for a job, `due_in_s` seconds from now. One that is open already is brought forward."""

    kind: Kind
    due_in_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The part of the contract's JobDefinition that SLURM is asked for. `gpus` is per job."""

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
    """How a job ended: what the contract shall say. `exit_status` is the raw wait(2) status."""

    status: ChainStatus
    elapsed_s: int = 0
    exit_status: int = 0
    reason: str = ""

    @property
    def minutes(self) -> int:
        """What is billed."""
        return billed_minutes(self.elapsed_s)


@dataclass(frozen=True, slots=True)
class Stop:
    """How a job ends that SLURM cancels because the supervisor asks for it, and what the customer is told."""

    status: ChainStatus
    reason: str


@dataclass(frozen=True, slots=True)
class TopUp:
    """Minutes that were added; `key` names the event on chain. `block` is None while a reorganisation has it in doubt."""

    key: str
    minutes: int
    block: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the ledger knows it.

    `claim_key` names the claim (transaction hash, and which of its logs), `slurm_submit_s` is when SLURM got the job by its
    own clock (Unix time; with the id it tells the job from others that have the id later), `chain_at` is the place on chain
    (block, log index) of the contract's last word on the job: an earlier word that comes later is void. `heard_block` is
    the highest block from which anything was heard of the job: what a reorganisation of that block puts in question. What
    it took away may come back until the block `doubt_until`. `applied_limit_min` is the limit that SLURM was last given
    (None: not known, or given up by the operator), `looks` counts the looks since the last news, `runs` are those of the
    present SLURM job, and `put_back` counts how often its size was made again what was paid for. `stop` is how the job ends
    that the supervisor itself has SLURM end. The script itself is kept by the ledger alone: it may be long.
    """

    job_id: JobId
    customer: Address
    provider: Address
    claim_key: str
    definition: Definition
    time_limit_min: int
    state: State = State.CLAIMED
    chain_status: ChainStatus = ChainStatus.SCHEDULED
    chain_at: tuple[int, int] = (0, 0)
    heard_block: int = 0
    doubt_until: int | None = None
    has_script: bool = False
    grid_logger_url: str = ""
    slurm_id: SlurmId | None = None
    slurm_submit_s: int | None = None
    top_ups: tuple[TopUp, ...] = ()
    applied_limit_min: int | None = None
    cancel_requested: bool = False
    looks: int = 0
    outcome: Outcome | None = None
    settled_by_operator: bool = False
    message: str = ""
    runs: Runs = ()
    put_back: int = 0
    stop: Stop | None = None

    @property
    def limit_min(self) -> int:
        """What was paid for: the time that was claimed and all top-ups, for all runs together."""
        return min(self.time_limit_min + sum(top_up.minutes for top_up in self.top_ups), GREATEST_LIMIT_MIN)

    @property
    def run_limit_min(self) -> int:
        """The time limit that the present run has in SLURM: what earlier runs have left of the paid time."""
        return left_min(self.limit_min, self.runs)

    @property
    def earlier_s(self) -> int:
        """The seconds of the runs before the present one."""
        return earlier_s(self.runs)

    @property
    def left_s(self) -> int:
        """The seconds of the paid time that were not used by the last look; below 0 where SLURM lets the job overrun."""
        return self.limit_min * SECONDS_PER_MINUTE - used_s(self.runs)

    @property
    def wants_cancel(self) -> bool:
        """Whether SLURM is to end it: the customer wants that, or the supervisor."""
        return self.cancel_requested or self.stop is not None

    @property
    def claim_in_doubt(self) -> bool:
        """Whether a reorganisation took our claim away, and it may come back: what SLURM has of the job goes on, nothing
        is begun, and nothing is reported.
        """
        return self.doubt_until is not None and self.chain_status < ChainStatus.SCHEDULED


def closes(job: Job) -> frozenset[Kind]:
    """The kinds of effect that have no purpose, or none any more, in the job's state."""
    pointless = set(Kind) - PURPOSEFUL[job.state]
    if job.settled_by_operator or _was_lost(job):
        pointless.discard(Kind.CANCEL)  # SLURM may run the job on
    if job.state is State.ENDED and job.stop is not None:
        pointless.discard(Kind.CANCEL)  # SLURM is not to run it once more
    if not path_to_goal(job):
        pointless.add(Kind.REPORT)
    if finished(job):
        pointless.add(Kind.REFUSE)
    if job.claim_in_doubt:
        pointless |= {Kind.FETCH, Kind.REFUSE} | ({Kind.SUBMIT} if job.state is State.READY else set())
    if job.state in (State.QUEUED, State.RUNNING) and not job.wants_cancel:
        pointless.add(Kind.CANCEL)
    return frozenset(pointless)


def _was_lost(job: Job) -> bool:
    return job.outcome is not None and job.outcome.status is ChainStatus.PANICKED


def finished(job: Job) -> bool:
    """Whether nothing more is to be decided about the job: the contract is cold, or the job is not ours any more."""
    return decided(job.state, job.chain_status)


def decided(state: State, chain_status: ChainStatus) -> bool:
    """Whether nothing more is to be decided about a job that stands so."""
    given_back = state is State.REFUSED and chain_status < ChainStatus.SCHEDULED
    return state is State.SETTLED or given_back


@dataclass(frozen=True, slots=True)
class Report:
    """One call of providerSetJobStatus."""

    status: ChainStatus
    minutes: int = 0
    reason: str = ""
    exit_status: int = 0


def path_to_goal(job: Job) -> tuple[Report, ...]:
    """The calls that bring the contract from its status to what is true: by way of RUNNING where the contract wants it,
    that is for everything but a job that was cancelled before it ran, or of which nobody knows what became.
    """
    if job.chain_status < ChainStatus.SCHEDULED:
        return ()  # not ours, or not yet again
    running = (Report(ChainStatus.RUNNING),) if job.chain_status is ChainStatus.SCHEDULED else ()
    outcome = job.outcome
    if outcome is None:
        return running if job.state is State.RUNNING else ()
    if job.chain_status.cold:
        return ()
    last = Report(outcome.status, outcome.minutes, outcome.reason, outcome.exit_status)
    never_ran = outcome.status in (ChainStatus.CANCELLED, ChainStatus.PANICKED) and outcome.elapsed_s == 0
    return (last,) if never_ran else (*running, last)


def unfit(definition: Definition, time_limit_min: int) -> str | None:
    """Why SLURM cannot be asked for this, or None. Zero would mean "no limit" or "all of the node" to SLURM. A hash that is no
    text (chain/codec.py shows its bytes) is nothing that anybody could be asked for.
    """
    for name, found, least in (
        ("time limit (minutes)", time_limit_min, 1),
        ("ntasks", definition.ntasks, 1),
        ("cpusPerTask", definition.cpus_per_task, 1),
        ("memPerCpu (MB)", definition.mem_per_cpu_mb, 1),
        ("gpus", definition.gpus, 0),
    ):
        if not least <= found <= GREATEST_COUNT:
            return f"job definition refused: {name} is {found}; expected {least} to {GREATEST_COUNT}"
    if "\\x" in definition.batch_location_hash:
        return f"job definition refused: batchLocationHash is {definition.batch_location_hash[:SHOWN]}; expected a text"
    return None
