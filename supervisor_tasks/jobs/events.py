"""What can happen to a job. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor_tasks.jobs.model import (
    Address,
    ChainStatus,
    Definition,
    EffectKind,
    JobId,
    Outcome,
    SlurmId,
)
from supervisor_tasks.jobs.runs import RunEnd, Sighting


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The contract gave us the job (ClaimJobEvent).

    `claim_known_to_ledger`: the ledger remembers that it wrote the claim. If it does
    not, SLURM may have the job already: the ledger was restored from a backup, or took
    over from another ledger, or a person wrote the claim.
    """

    job_id: JobId
    customer: Address
    provider: Address
    claim_key: str
    definition: Definition
    time_limit_min: int
    at: tuple[int, int] = (0, 0)
    claim_known_to_ledger: bool = True


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
    """A submission begins: from now on SLURM may have the job, with this time limit."""

    limit_min: int


@dataclass(frozen=True, slots=True)
class Submitted:
    """SLURM has the job under this id."""

    slurm_id: SlurmId


@dataclass(frozen=True, slots=True)
class SubmitRejected:
    """SLURM answered that it will not take the job. `token_s`: for so many seconds the
    customer may still be able to submit the job with the token that his login session
    got; 0 if it got none.
    """

    reason: str
    token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SubmitNotExecuted:
    """SLURM certainly did not take the job: nothing of the submission reached SLURM, or
    SLURM answered "not now".
    """

    reason: str


@dataclass(frozen=True, slots=True)
class SubmitOutcomeUnknown:
    """It is not known yet whether SLURM took the job. `unparsed`: the parser does not
    understand what sbatch printed.
    """

    reason: str
    unparsed: bool = False


@dataclass(frozen=True, slots=True)
class SubmissionNotFound:
    """SLURM answered and has no SLURM job for this job."""


@dataclass(frozen=True, slots=True)
class SubmissionStillPossible:
    """A job that is over without a SLURM id was searched for, and what was sent for its
    submission can still bring it to SLURM for `left_s` seconds.
    """

    left_s: float


@dataclass(frozen=True, slots=True)
class CallbackReceived:
    """A callback about the job arrived: a reason to look at the job. What the callback
    states may be false.

    The look comes in `poll_delay_s` seconds: at once, or later when more callbacks came
    than a plugin sends. `running`: the callback reported that the job runs.
    """

    poll_delay_s: float = 0.0
    running: bool = False


@dataclass(frozen=True, slots=True)
class SlurmJobIdentified:
    """A look identified the SLURM job with this id as ours. `submit_s` is when SLURM
    got it (Unix time); a requeue makes that time later. `run` is the present run. The
    job cannot have run before `since_s`.
    """

    slurm_id: SlurmId
    submit_s: int
    run: Sighting | None = None
    since_s: int | None = None


@dataclass(frozen=True, slots=True)
class SlurmPendingObserved:
    """A look brought no news: the job waits, configures, completes, or is in a state
    that we do not know.
    """

    seen: str
    run: Sighting | None = None


@dataclass(frozen=True, slots=True)
class SlurmRunningObserved:
    """SLURM runs the job. `seen` is the state that SLURM shows; it can be SUSPENDED."""

    seen: str = ""
    run: Sighting | None = None


@dataclass(frozen=True, slots=True)
class EarlierRunsReported:
    """The hooks reported the seconds of each run before the present one, at the end of
    that run.
    """

    ends: tuple[RunEnd, ...]


@dataclass(frozen=True, slots=True)
class EarlierRunsAwaited:
    """A look saw that SLURM has ended the job, and accounting or the hooks do not have
    all of its runs yet. Their number and age in the journal bound the waiting.
    """


@dataclass(frozen=True, slots=True)
class MoreThanPaid:
    """SLURM gives the job more than was paid for, or is about to.

    `limit_only`: only time is more, and SLURM lets the limit be lowered also while the
    job runs. A job that `waits` can be put back to its paid size. A job that has
    `ended` keeps its end.
    """

    what: str
    limit_only: bool
    waits: bool
    ended: bool = False


@dataclass(frozen=True, slots=True)
class SlurmCompleted:
    """SLURM ended the job. `outcome` is that of the last run. `earlier_s` is the
    seconds of the `earlier_runs` before it, as accounting shows them; if it is None,
    the runs that the looks saw count. `may_requeue`: the owner can requeue the job.
    """

    outcome: Outcome
    earlier_s: int | None = None
    earlier_runs: int = 0
    may_requeue: bool = False


@dataclass(frozen=True, slots=True)
class RunsAfterItsEnd:
    """SLURM runs, or will run, a job that has ended in the ledger: it was requeued
    before SLURM had to reject that.
    """

    slurm_id: SlurmId


@dataclass(frozen=True, slots=True)
class LaterRunEnded:
    """SLURM ended a run that its owner began after the end in the ledger, and that end
    is not reported yet. `submit_s` is that run's time (Unix time).
    """

    slurm_id: SlurmId
    submit_s: int
    elapsed_s: int


@dataclass(frozen=True, slots=True)
class RequeueForbidden:
    """SLURM must reject each requeue of the job, which has ended."""


@dataclass(frozen=True, slots=True)
class RequeueNotForbidden:
    """SLURM does not accept the order to reject a requeue of the ended job, or does not
    answer for long. The operator decides.
    """


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The customer cancels the job (ClaimNextCancellingJobEvent)."""

    at: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ToppedUp:
    """Minutes to add to the limit (ClaimNextTopUpJobEvent); `key` names the event on
    chain.
    """

    key: str
    minutes: int
    at: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class LimitApplied:
    """SLURM has this time limit. With `put_back`, the worker also put a waiting job
    back to its paid size.
    """

    limit_min: int
    put_back: bool = False


@dataclass(frozen=True, slots=True)
class ChainStatusObserved:
    """The contract's status of the job: either from a log (`at` is its place on chain,
    block and log index), or as the contract answers now (`at` is None).
    """

    status: ChainStatus
    at: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reorganised:
    """The blocks above `fork` were replaced.

    `status`, `ours` and `cancel_requested` are what the contract answers about the job
    at the block `seen`. What is missing there can come back until the block `until`.
    With `until` None that time is over, and what is missing is lost.
    """

    status: ChainStatus
    ours: bool
    cancel_requested: bool
    fork: int
    seen: int
    until: int | None


@dataclass(frozen=True, slots=True)
class EffectMissing:
    """The sweep found that no worker works on this, or found news that no worker has
    looked at.
    """

    kind: EffectKind


@dataclass(frozen=True, slots=True)
class ExistingSlurmJobAdopted:
    """SLURM got the job before this ledger knew of it. Without an id, the contract
    shows that the job ran, and SLURM shows nothing of it.
    """

    slurm_id: SlurmId | None


@dataclass(frozen=True, slots=True)
class SlurmJobMissing:
    """SLURM answers and does not know the job under that id, nor does accounting. What
    became of the job is unknown.
    """

    slurm_id: SlurmId | None
    reason: str


@dataclass(frozen=True, slots=True)
class SubmissionLostBySlurm:
    """slurmctld took the job and was killed before it saved that. No look, callback or
    log shows that the job ever ran.
    """

    slurm_id: SlurmId


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """The node that SLURM gave the job could not start it: its script never ran,
    although SLURM shows it as completed or cancelled.
    """

    slurm_id: SlurmId
    node: str


@dataclass(frozen=True, slots=True)
class FalseSlurmId:
    """SLURM has no job of ours under the id in sbatch's answer, and cannot have
    forgotten it. It may have the job under another id.
    """

    slurm_id: SlurmId
    reason: str


@dataclass(frozen=True, slots=True)
class EffectCompleted:
    """An effect was carried out, and nothing else changes: SLURM got the cancel, or the
    logger got the lines.
    """

    kind: EffectKind


@dataclass(frozen=True, slots=True)
class OperatorConfirmedNotSubmitted:
    """The operator states that SLURM does not have the job, after a submission that no
    program can clear up.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class OperatorCancelled:
    """The operator wants the job to end. What it has run by then is billed; the
    customer reads the reason.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class OperatorSettledJob:
    """The operator states how the job ended."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class OperatorAbandonedEffect:
    """The operator gave up an effect."""

    kind: EffectKind
    reason: str


Event = (
    Claimed
    | ScriptFetched
    | ScriptUnavailable
    | SubmitStarted
    | Submitted
    | SubmitRejected
    | SubmitNotExecuted
    | SubmitOutcomeUnknown
    | SubmissionNotFound
    | SubmissionStillPossible
    | CallbackReceived
    | SlurmJobIdentified
    | SlurmPendingObserved
    | SlurmRunningObserved
    | EarlierRunsReported
    | EarlierRunsAwaited
    | MoreThanPaid
    | SlurmCompleted
    | RunsAfterItsEnd
    | LaterRunEnded
    | RequeueForbidden
    | RequeueNotForbidden
    | CancelRequested
    | ToppedUp
    | LimitApplied
    | ChainStatusObserved
    | EffectMissing
    | ExistingSlurmJobAdopted
    | SlurmJobMissing
    | SubmissionLostBySlurm
    | LaunchFailed
    | FalseSlurmId
    | Reorganised
    | EffectCompleted
    | OperatorCancelled
    | OperatorConfirmedNotSubmitted
    | OperatorSettledJob
    | OperatorAbandonedEffect
)

# The names in the journal. The name of a class can change; a stored name changes only
# by a migration. cli/timeline.py (EVENT_TEXTS) has words for each.
STORED_NAMES: Mapping[type[Event], str] = {
    Claimed: "Claimed",
    ScriptFetched: "ScriptFetched",
    ScriptUnavailable: "ScriptUnavailable",
    SubmitStarted: "SubmitStarted",
    Submitted: "Submitted",
    SubmitRejected: "SubmitRejected",
    SubmitNotExecuted: "SubmitNotExecuted",
    SubmitOutcomeUnknown: "SubmitOutcomeUnknown",
    SubmissionNotFound: "SubmissionNotFound",
    SubmissionStillPossible: "SubmissionStillPossible",
    CallbackReceived: "CallbackReceived",
    SlurmJobIdentified: "SlurmJobIdentified",
    SlurmPendingObserved: "SlurmPendingObserved",
    SlurmRunningObserved: "SlurmRunningObserved",
    EarlierRunsReported: "EarlierRunsReported",
    EarlierRunsAwaited: "EarlierRunsAwaited",
    MoreThanPaid: "MoreThanPaid",
    SlurmCompleted: "SlurmCompleted",
    RunsAfterItsEnd: "RunsAfterItsEnd",
    LaterRunEnded: "LaterRunEnded",
    RequeueForbidden: "RequeueForbidden",
    RequeueNotForbidden: "RequeueNotForbidden",
    CancelRequested: "CancelRequested",
    ToppedUp: "ToppedUp",
    LimitApplied: "LimitApplied",
    ChainStatusObserved: "ChainStatusObserved",
    EffectMissing: "EffectMissing",
    ExistingSlurmJobAdopted: "ExistingSlurmJobAdopted",
    SlurmJobMissing: "SlurmJobMissing",
    SubmissionLostBySlurm: "SubmissionLostBySlurm",
    LaunchFailed: "LaunchFailed",
    FalseSlurmId: "FalseSlurmId",
    Reorganised: "Reorganised",
    EffectCompleted: "EffectCompleted",
    OperatorConfirmedNotSubmitted: "OperatorConfirmedNotSubmitted",
    OperatorSettledJob: "OperatorSettledJob",
    OperatorCancelled: "OperatorCancelled",
    OperatorAbandonedEffect: "OperatorAbandonedEffect",
}


def stored_name(event: Event | type[Event]) -> str:
    """The name under which the journal stores the event."""
    if isinstance(event, type):
        return STORED_NAMES[event]
    return STORED_NAMES[type(event)]
