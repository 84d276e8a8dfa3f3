"""A job's states and what each event makes of it.

`advance` is the only place that decides. It is pure: whatever happened to a job arrives as an event, and the answer
is the new job and the effects (things to do) that follow from it. The ledger commits all three together.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, NewType

from supervisor_tasks.billing import billed_minutes

JobId = NewType("JobId", str)  # 0x and 64 lowercase hex digits
Address = NewType("Address", str)  # 0x and 40 lowercase hex digits
SlurmId = NewType("SlurmId", int)

FIRST_LOOK_S = 0.5
LONGEST_LOOK_S = 900.0
BEFORE_SECOND_SEARCH_S = 12.0  # more than SLURM's default MessageTimeout of 10 s
REPORT_AGAIN_S = 30.0  # when no transaction of a report was seen mined by then
GREATEST_LIMIT_MIN = 2**31 - 1  # SLURM keeps time limits in 32 bits
GREATEST_COUNT = 2**31 - 1


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
# that certainly did not happen is made again.
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
    State.ENDED: {Kind.REPORT, Kind.TELL_USER},
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the ledger knows it.

    `claim_key` names the claim (transaction hash and log index), `chain_at` is the place on chain (block, log index) of
    the contract's last word on the job: an earlier word that comes later is void. `top_ups` maps the key of each top-up
    event to its minutes, `applied_limit_min` is the limit that SLURM was last given, `looks` counts the looks since the
    last news.
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
    script: str | None = field(default=None, repr=False)
    grid_logger_url: str = ""
    slurm_id: SlurmId | None = None
    top_ups: tuple[tuple[str, int], ...] = ()
    applied_limit_min: int | None = None
    cancel_requested: bool = False
    looks: int = 0
    outcome: Outcome | None = None
    message: str = ""

    @property
    def limit_min(self) -> int:
        """The absolute time limit: what was claimed and all top-ups."""
        return min(self.time_limit_min + sum(minutes for _, minutes in self.top_ups), GREATEST_LIMIT_MIN)


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The contract gave us the job (ClaimJobEvent)."""

    job_id: JobId
    customer: Address
    provider: Address
    claim_key: str
    definition: Definition
    time_limit_min: int
    at: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class ScriptFetched:
    """The job definition service gave the script."""

    script: str = field(repr=False)
    grid_logger_url: str


@dataclass(frozen=True, slots=True)
class ScriptUnavailable:
    """The job definition service will never give the script."""

    reason: str


@dataclass(frozen=True, slots=True)
class SubmitStarted:
    """From now on SLURM may have the job; it was given this limit."""

    limit_min: int


@dataclass(frozen=True, slots=True)
class Submitted:
    """SLURM has the job under this id."""

    slurm_id: SlurmId


@dataclass(frozen=True, slots=True)
class SubmitRejected:
    """SLURM answered that it will not take the job."""

    reason: str


@dataclass(frozen=True, slots=True)
class SubmitUnclear:
    """Nobody knows yet whether SLURM took the job."""

    reason: str


@dataclass(frozen=True, slots=True)
class SubmitNotFound:
    """SLURM answers, and has no job of that name and user."""


@dataclass(frozen=True, slots=True)
class CalledBack:
    """A plugin said something: a hint to look, whatever it said."""


@dataclass(frozen=True, slots=True)
class SlurmWaiting:
    """SLURM was looked at and had no news: it waits, configures, completes, or says nothing that we understand."""

    seen: str


@dataclass(frozen=True, slots=True)
class SlurmStarted:
    """SLURM runs the job."""


@dataclass(frozen=True, slots=True)
class SlurmEnded:
    """SLURM's last word."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The customer wants no more of it (ClaimNextCancellingJobEvent)."""


@dataclass(frozen=True, slots=True)
class ToppedUp:
    """Minutes to add to the limit (ClaimNextTopUpJobEvent); `key` names the event on chain."""

    key: str
    minutes: int


@dataclass(frozen=True, slots=True)
class LimitApplied:
    """SLURM has this time limit."""

    limit_min: int


@dataclass(frozen=True, slots=True)
class ChainSaw:
    """The contract's status of the job: as a log told it (`at` is the log's place on chain, block and index), or as it is
    now (`at` is None).
    """

    status: ChainStatus
    at: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Carried:
    """An effect was carried out and there is nothing to add: cancel asked for, lines handed to the logger."""

    kind: Kind


Event = (
    Claimed
    | ScriptFetched
    | ScriptUnavailable
    | SubmitStarted
    | Submitted
    | SubmitRejected
    | SubmitUnclear
    | SubmitNotFound
    | CalledBack
    | SlurmWaiting
    | SlurmStarted
    | SlurmEnded
    | CancelRequested
    | ToppedUp
    | LimitApplied
    | ChainSaw
    | Carried
)
Next = tuple[Job, tuple[Effect, ...]]


def advance(job: Job | None, event: Event) -> tuple[Job | None, tuple[Effect, ...]]:
    """What an event makes of a job. A job that is not known yet begins with its claim and with nothing else; an event
    that comes twice, late or out of order changes nothing that was decided.
    """
    if isinstance(event, Claimed):
        return _claimed(job, event)
    if job is None:
        return None, ()
    return _RULES[type(event)](job, event)


def closes(job: Job) -> frozenset[Kind]:
    """The kinds of effect that have no purpose, or none any more, in the job's state."""
    pointless = set(Kind) - PURPOSEFUL[job.state]
    if not path_to_goal(job):
        pointless.add(Kind.REPORT)
    if finished(job):
        pointless.add(Kind.REFUSE)
    return frozenset(pointless)


def finished(job: Job) -> bool:
    """Whether nothing more is to be decided about the job: the contract is cold, or the job is not ours any more."""
    given_back = job.state is State.REFUSED and job.chain_status < ChainStatus.SCHEDULED
    return job.state is State.SETTLED or given_back


@dataclass(frozen=True, slots=True)
class Report:
    """One call of providerSetJobStatus."""

    status: ChainStatus
    minutes: int = 0
    reason: str = ""
    exit_status: int = 0


def path_to_goal(job: Job) -> tuple[Report, ...]:
    """The calls that bring the contract from its status to what is true: by way of RUNNING where the contract wants it,
    that is for everything but a job that was cancelled before it ran.
    """
    running = (Report(ChainStatus.RUNNING),) if job.chain_status is ChainStatus.SCHEDULED else ()
    outcome = job.outcome
    if outcome is None:
        return running if job.state is State.RUNNING else ()
    if job.chain_status.cold:
        return ()
    last = Report(outcome.status, outcome.minutes, outcome.reason, outcome.exit_status)
    never_ran = outcome.status is ChainStatus.CANCELLED and outcome.elapsed_s == 0
    return (last,) if never_ran else (*running, last)


def unfit(definition: Definition, time_limit_min: int) -> str | None:
    """Why SLURM cannot be asked for this, or None. Zero would mean "no limit" or "all of the node" to SLURM."""
    for name, found, least in (
        ("time limit (minutes)", time_limit_min, 1),
        ("ntasks", definition.ntasks, 1),
        ("cpusPerTask", definition.cpus_per_task, 1),
        ("memPerCpu (MB)", definition.mem_per_cpu_mb, 1),
        ("gpus", definition.gpus, 0),
    ):
        if not least <= found <= GREATEST_COUNT:
            return f"job definition refused: {name} is {found}; expected {least} to {GREATEST_COUNT}"
    return None


# --- rules, one an event --------------------------------------------------------------------------------------------


def _claimed(job: Job | None, event: Claimed) -> Next:
    if job is not None:
        given_back = job.state is State.REFUSED and job.claim_key != event.claim_key
        if not given_back:
            return job, ()
    fresh = Job(
        job_id=event.job_id,
        customer=event.customer,
        provider=event.provider,
        claim_key=event.claim_key,
        definition=event.definition,
        time_limit_min=event.time_limit_min,
        chain_at=event.at,
    )
    problem = unfit(event.definition, event.time_limit_min)
    if problem is not None:
        return _end(fresh, Outcome(status=ChainStatus.FAILED, reason=problem))
    return fresh, (Effect(Kind.FETCH),)


def _script_fetched(job: Job, event: ScriptFetched) -> Next:
    if job.state is not State.CLAIMED:
        return job, ()
    ready = replace(job, state=State.READY, script=event.script, grid_logger_url=event.grid_logger_url)
    return ready, (Effect(Kind.SUBMIT),)


def _script_unavailable(job: Job, event: ScriptUnavailable) -> Next:
    if job.state is not State.CLAIMED:
        return job, ()
    return _end(job, Outcome(status=ChainStatus.FAILED, reason=event.reason))


def _submit_started(job: Job, event: SubmitStarted) -> Next:
    if job.state is not State.READY:
        return job, ()
    return replace(job, state=State.SUBMITTING, applied_limit_min=event.limit_min, looks=0), ()


def _submitted(job: Job, event: Submitted) -> Next:
    if job.slurm_id is not None:
        return job, ()
    known = replace(job, slurm_id=event.slurm_id, looks=0)
    if job.state is State.SUBMITTING:
        queued = replace(known, state=State.QUEUED)
        cancel = (Effect(Kind.CANCEL),) if job.cancel_requested else ()
        return queued, (_look(queued), *cancel, *_limit_to_apply(queued))
    if job.state in (State.SETTLED, State.REFUSED):
        return known, (Effect(Kind.CANCEL),)
    return job, ()


def _submit_rejected(job: Job, event: SubmitRejected) -> Next:
    if job.state is not State.SUBMITTING:
        return job, ()
    if job.cancel_requested:
        return _end(job, Outcome(status=ChainStatus.CANCELLED))
    refused = replace(job, state=State.REFUSED, message=event.reason)
    return refused, (Effect(Kind.REFUSE), Effect(Kind.TELL_USER))


def _submit_unclear(job: Job, _: SubmitUnclear) -> Next:
    if job.state is not State.SUBMITTING:
        return job, ()
    return replace(job, looks=0), (Effect(Kind.SUBMIT, FIRST_LOOK_S),)


def _submit_not_found(job: Job, _: SubmitNotFound) -> Next:
    if job.state is not State.SUBMITTING:
        return job, ()
    if job.looks == 0:
        return replace(job, looks=1), (Effect(Kind.SUBMIT, BEFORE_SECOND_SEARCH_S),)
    if job.cancel_requested:
        return _end(job, Outcome(status=ChainStatus.CANCELLED))
    return replace(job, state=State.READY, looks=0), (Effect(Kind.SUBMIT),)


def _called_back(job: Job, _: CalledBack) -> Next:
    if job.state not in (State.QUEUED, State.RUNNING):
        return job, ()
    return replace(job, looks=0), (Effect(Kind.WITNESS),)


def _slurm_waiting(job: Job, _: SlurmWaiting) -> Next:
    if job.state not in (State.QUEUED, State.RUNNING):
        return job, ()
    return replace(job, looks=job.looks + 1), (_look(job),)


def _slurm_started(job: Job, _: SlurmStarted) -> Next:
    if job.state is State.QUEUED:
        running = replace(job, state=State.RUNNING, looks=0)
        return running, (Effect(Kind.REPORT), _look(running))
    if job.state is State.RUNNING:
        return replace(job, looks=job.looks + 1), (_look(job),)
    return job, ()


def _slurm_ended(job: Job, event: SlurmEnded) -> Next:
    if job.state not in (State.QUEUED, State.RUNNING):
        return job, ()
    return _end(job, event.outcome)


def _cancel_requested(job: Job, _: CancelRequested) -> Next:
    if RANK[job.state] >= RANK[State.ENDED]:
        return job, ()
    asked = replace(job, cancel_requested=True)
    if job.state in (State.CLAIMED, State.READY):
        return _end(asked, Outcome(status=ChainStatus.CANCELLED))
    if job.state is State.SUBMITTING:
        return asked, ()
    return asked, (Effect(Kind.CANCEL),)


def _topped_up(job: Job, event: ToppedUp) -> Next:
    if finished(job) or event.key in dict(job.top_ups):
        return job, ()
    longer = replace(job, top_ups=(*job.top_ups, (event.key, event.minutes)))
    return longer, _limit_to_apply(longer)


def _limit_applied(job: Job, event: LimitApplied) -> Next:
    if job.applied_limit_min is not None and event.limit_min <= job.applied_limit_min:
        return job, ()
    applied = replace(job, applied_limit_min=event.limit_min)
    return applied, _limit_to_apply(applied)


def _chain_saw(job: Job, event: ChainSaw) -> Next:
    if finished(job) or (event.at is not None and event.at <= job.chain_at):
        return job, ()
    job = replace(job, chain_at=event.at or job.chain_at)
    if event.status is job.chain_status:
        return job, ()
    if event.status.cold:
        settled = replace(job, state=State.SETTLED, chain_status=event.status)
        return settled, _stop_slurm(job)
    if event.status < ChainStatus.SCHEDULED:
        lost = replace(job, state=State.REFUSED, chain_status=event.status)
        return lost, _stop_slurm(job)
    if event.status < job.chain_status:
        return job, ()
    return replace(job, chain_status=event.status), ()


def _carried(job: Job, _: Carried) -> Next:
    return job, ()


# Each rule takes the one event that it is listed under.
_RULES: dict[type, Callable[[Job, Any], Next]] = {
    ScriptFetched: _script_fetched,
    ScriptUnavailable: _script_unavailable,
    SubmitStarted: _submit_started,
    Submitted: _submitted,
    SubmitRejected: _submit_rejected,
    SubmitUnclear: _submit_unclear,
    SubmitNotFound: _submit_not_found,
    CalledBack: _called_back,
    SlurmWaiting: _slurm_waiting,
    SlurmStarted: _slurm_started,
    SlurmEnded: _slurm_ended,
    CancelRequested: _cancel_requested,
    ToppedUp: _topped_up,
    LimitApplied: _limit_applied,
    ChainSaw: _chain_saw,
    Carried: _carried,
}


def _end(job: Job, outcome: Outcome) -> Next:
    ended = replace(job, state=State.ENDED, outcome=outcome, message=outcome.reason)
    tell = (Effect(Kind.TELL_USER),) if outcome.reason else ()
    return ended, (Effect(Kind.REPORT), *tell)


def _look(job: Job) -> Effect:
    return Effect(Kind.WITNESS, min(FIRST_LOOK_S * 2 ** min(job.looks, 16), LONGEST_LOOK_S))


def _limit_to_apply(job: Job) -> tuple[Effect, ...]:
    given = job.state in (State.QUEUED, State.RUNNING)
    return (Effect(Kind.TOP_UP),) if given and job.limit_min != job.applied_limit_min else ()


def _stop_slurm(job: Job) -> tuple[Effect, ...]:
    """The contract has decided; what SLURM may still hold of the job is cancelled. After an unclear submission only
    when it can no longer arrive.
    """
    if job.state is State.SUBMITTING:
        return (Effect(Kind.CANCEL, BEFORE_SECOND_SEARCH_S),)
    return (Effect(Kind.CANCEL),) if job.slurm_id is not None and job.outcome is None else ()
