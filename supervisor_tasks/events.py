"""What can happen to a job. Pure."""

from dataclasses import dataclass, field

from supervisor_tasks.job import Address, ChainStatus, Definition, JobId, Kind, Outcome, SlurmId
from supervisor_tasks.jobs.runs import Sighting


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The contract gave us the job (ClaimJobEvent). `signed_here`: the ledger remembers that it wrote the claim. Of one that it
    does not (it was restored from a backup, or took another ledger's over, or a person wrote it) SLURM may have the job.
    """

    job_id: JobId
    customer: Address
    provider: Address
    claim_key: str
    definition: Definition
    time_limit_min: int
    at: tuple[int, int] = (0, 0)
    signed_here: bool = True


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
class SubmitNotRun:
    """SLURM was certainly not asked: nothing of the submission that had begun reached it, or it said "not now"."""

    reason: str


@dataclass(frozen=True, slots=True)
class SubmitUnclear:
    """Nobody knows yet whether SLURM took the job. `strange`: sbatch answered, in words that we do not understand."""

    reason: str
    strange: bool = False


@dataclass(frozen=True, slots=True)
class SubmitNotFound:
    """SLURM answers, and has no job of that name and user."""


@dataclass(frozen=True, slots=True)
class CalledBack:
    """A plugin said something: a hint to look, whatever it said. At once, or, where so much was said already that it can be
    no plugin, in a while. `running`: it said that the job runs.
    """

    look_in_s: float = 0.0
    running: bool = False


@dataclass(frozen=True, slots=True)
class Recognised:
    """The job that SLURM has under the id is ours; SLURM got it at that time (Unix time). A requeue makes it a later one:
    `run` is the present run, and nothing of the job ran before `since_s`.
    """

    slurm_id: SlurmId
    submit_s: int
    run: Sighting | None = None
    since_s: int | None = None


@dataclass(frozen=True, slots=True)
class SlurmWaiting:
    """SLURM was looked at and had no news: it waits, configures, completes, or says nothing that we understand."""

    seen: str
    run: Sighting | None = None


@dataclass(frozen=True, slots=True)
class SlurmStarted:
    """SLURM runs the job; `seen` is the state that it shows, which may be SUSPENDED."""

    seen: str = ""
    run: Sighting | None = None


@dataclass(frozen=True, slots=True)
class EarlierRunsTold:
    """The hooks told the seconds of each run before the present one, at its end."""

    ends_s: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MoreThanPaid:
    """SLURM gives the job, or is about to give it, more than was paid for. `limit_only`: nothing but time, which SLURM takes
    back also while the job runs. What a job has that `waits` can be put back; one that has `ended` keeps its end.
    """

    what: str
    limit_only: bool
    waits: bool
    ended: bool = False


@dataclass(frozen=True, slots=True)
class SlurmEnded:
    """SLURM's last word, on the last run. `earlier_s` are the seconds of the `earlier_runs` before it where accounting has told
    them; else what looks have shown counts. `may_requeue`: its owner can have SLURM run it once more.
    """

    outcome: Outcome
    earlier_s: int | None = None
    earlier_runs: int = 0
    may_requeue: bool = False


@dataclass(frozen=True, slots=True)
class RunsAfterItsEnd:
    """SLURM runs the job, or will, that has ended as the ledger knows: it was requeued before SLURM was told to refuse that."""

    slurm_id: SlurmId


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The customer wants no more of it (ClaimNextCancellingJobEvent)."""

    at: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ToppedUp:
    """Minutes to add to the limit (ClaimNextTopUpJobEvent); `key` names the event on chain."""

    key: str
    minutes: int
    at: tuple[int, int] | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reorganised:
    """The blocks above `fork` were replaced. The rest is what the contract said of the job at the block `seen`. What is
    missing there may come back until the block `until`; None means that it has had its time, and what is missing is lost.
    """

    status: ChainStatus
    ours: bool
    cancel_requested: bool
    fork: int
    seen: int
    until: int | None


@dataclass(frozen=True, slots=True)
class Overlooked:
    """The sweep found nobody at work on this, or news that nobody had looked at."""

    kind: Kind


@dataclass(frozen=True, slots=True)
class Adopted:
    """SLURM was given the job before this ledger knew of it. Without an id the contract says that it ran, and SLURM shows
    nothing of it.
    """

    slurm_id: SlurmId | None


@dataclass(frozen=True, slots=True)
class SlurmLost:
    """SLURM, which answers, does not know the job under that id; nor does accounting. Nobody knows what became of it."""

    slurm_id: SlurmId | None
    reason: str


@dataclass(frozen=True, slots=True)
class SubmissionForgotten:
    """slurmctld was killed before it had saved that it took the job, which waited: nothing of it was ever seen anywhere."""

    slurm_id: SlurmId


@dataclass(frozen=True, slots=True)
class SubmissionDenied:
    """SLURM, which cannot have forgotten it, has no job of ours under the id that sbatch's answer named. It may have it under
    another one.
    """

    slurm_id: SlurmId
    reason: str


@dataclass(frozen=True, slots=True)
class Carried:
    """An effect was carried out and there is nothing to add: cancel asked for, lines handed to the logger."""

    kind: Kind


@dataclass(frozen=True, slots=True)
class OperatorDenied:
    """SLURM does not have the job, by the operator's word: of a submission of which nobody else can tell."""

    reason: str


@dataclass(frozen=True, slots=True)
class OperatorSettled:
    """How the job ended, by the operator's word."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class OperatorForgot:
    """An effect that the operator gave up."""

    kind: Kind
    reason: str


Event = (
    Claimed
    | ScriptFetched
    | ScriptUnavailable
    | SubmitStarted
    | Submitted
    | SubmitRejected
    | SubmitNotRun
    | SubmitUnclear
    | SubmitNotFound
    | CalledBack
    | Recognised
    | SlurmWaiting
    | SlurmStarted
    | EarlierRunsTold
    | MoreThanPaid
    | SlurmEnded
    | RunsAfterItsEnd
    | CancelRequested
    | ToppedUp
    | LimitApplied
    | ChainSaw
    | Overlooked
    | Adopted
    | SlurmLost
    | SubmissionForgotten
    | SubmissionDenied
    | Reorganised
    | Carried
    | OperatorDenied
    | OperatorSettled
    | OperatorForgot
)
