"""What plugins reported about a job that SLURM has forgotten, or whose end it has
forgotten, and whether it can be true. Pure.

Any program that reaches the port can call. At a site with a CALLBACK_KEY only proven
callbacks come here (`evidence` in jobs/run_callbacks.py). A callback counts only if no
better source is left, if it can be true, and if no other callback that can be true
contradicts it. If two different ends can be true, the operator decides.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from supervisor_tasks.execution.doubled_delay import doubled_delay_s
from supervisor_tasks.jobs.billing import SECONDS_PER_MINUTE, billed_minutes
from supervisor_tasks.jobs.model import ChainStatus, Job, Outcome
from supervisor_tasks.jobs.runs import CLOCKS_APART_S
from supervisor_tasks.slurm.job_states import OUT_OF_MEMORY_STATUS
from supervisor_tasks.slurm.parsers import JobRecord, describe_exit

# JobStatus of protos/supervisor/v1alpha1, as the upstream completion plugin sends it
RUNNING = 4
ENDED = {
    6: ChainStatus.CANCELLED,
    7: ChainStatus.FINISHED,
    8: ChainStatus.FAILED,
    9: ChainStatus.OUT_OF_CREDITS,
}
WITHOUT_OWN_EXIT_STATUS = (ChainStatus.CANCELLED, ChainStatus.OUT_OF_CREDITS)
# States in which SLURM ends a job that no node runs any more.
ENDED_WITHOUT_ITS_SCRIPT = ("CANCELLED", "DEADLINE", "NODE_FAIL", "TIMEOUT")
ENDED_BY_SLURM_ITSELF = "SLURM: NODE_FAIL, PREEMPTED, DEADLINE or BOOT_FAIL"
CONTRADICTED = "SLURM has forgotten how the job ended, and the callbacks contradict each other: use `supervisor job settle`"
RESIZED = "SLURM has forgotten how the job ended, and a plugin's seconds begin at its resize: use `supervisor job settle`"
SUSPENDED = "SLURM has forgotten how the job ended, and a plugin's seconds include its suspension: use `supervisor job settle`"


# different callbacks of one job under one SLURM id; the hook and the SPANK plugin
# report two things
CALLBACKS_AT_ONCE = 4
FIRST_GAP_S = 1.0  # doubled with each further callback
MAX_GAP_S = 30.0


def poll_delay_s(callbacks: int) -> float:
    """Seconds until the look after a callback, when `callbacks` different callbacks
    came for the job. A caller that forges callbacks causes at most two looks a minute.
    """
    if callbacks <= CALLBACKS_AT_ONCE:
        return 0.0
    doublings = callbacks - CALLBACKS_AT_ONCE - 1
    return doubled_delay_s(doublings, FIRST_GAP_S, MAX_GAP_S)


@dataclass(frozen=True, slots=True)
class CallbackRecord:
    """A callback: the numbers from a plugin, and when they arrived (Unix time)."""

    status: int
    duration_s: int
    exit_code: int
    received_s: float


def was_resized(callbacks: Iterable[CallbackRecord]) -> bool:
    """Whether our own hook reported that the job was resized: as RUNNING with an exit
    code (plugins/spool.py).
    """
    return any(each.status == RUNNING and each.exit_code for each in callbacks)


@dataclass(frozen=True, slots=True)
class ConflictingOutcomes:
    """The ends that a job may have had, and why an operator must decide."""

    ends: tuple[Outcome, ...]
    why: str = CONTRADICTED

    def __str__(self) -> str:
        described = (
            f"{end.status.name} after {end.elapsed_s} s, exit status {end.exit_status}"
            for end in self.ends
        )
        return "; or ".join(described)


def outcome_from_callbacks(
    job: Job,
    called_s: float,
    callbacks: Iterable[CallbackRecord],
    *,
    suspended: bool = False,
) -> Outcome | ConflictingOutcomes | None:
    """How the job ended, if the callbacks with its name and id leave one possibility;
    None if they show no end.

    `called_s` is when sbatch was called (Unix time). If a look has seen the job
    `suspended`, no callback is believed. A plugin's seconds go from the start to the
    end, and the customer does not pay for a suspension. A suspension between two looks
    is not known. For a requeued job, an end from before the last look at the last run
    is that of an earlier run. The ledger has the seconds of that run.
    """
    callbacks = list(callbacks)
    since_s = float("-inf")
    if len(job.runs) > 1:
        since_s = job.runs[-1].seen_s - CLOCKS_APART_S
    # of ends that are billed alike, the last one
    different = dict[tuple[ChainStatus, int, int], Outcome]()
    for callback in callbacks:
        if callback.received_s < since_s:
            continue
        end = _outcome(job, called_s, callback)
        if end is not None:
            different[end.status, end.minutes, end.exit_status] = end
    if not different:
        return None
    ends = tuple(different.values())
    if was_resized(callbacks):
        return ConflictingOutcomes(ends, RESIZED)
    if suspended:
        return ConflictingOutcomes(ends, SUSPENDED)
    if len(ends) > 1:
        return ConflictingOutcomes(ends)
    return ends[0]


def end_before_slurms(
    job: Job, called_s: float, record: JobRecord, proven: Iterable[CallbackRecord]
) -> Outcome | None:
    """The end that our own hook reported, if SLURM ended the job a second time; else None.

    A slurmctld that is killed before it saves a job's end has the job as running after
    its start. It does so until it notices that no node runs the job, or until the time
    limit. Then its record shows another end, after more seconds. `proven`: the
    callbacks with the site's key under the job's SLURM id, the oldest first. A job with
    several runs has several ends; the hook reports the end of a run that is requeued as
    CANCELLED. The seconds of a resized job are those since the resize.
    """
    proven = list(proven)
    if record.state not in ENDED_WITHOUT_ITS_SCRIPT or was_resized(proven):
        return None
    if len(job.runs) > 1 or record.restarts or record.earlier_runs:
        return None
    ends = (_outcome(job, called_s, callback) for callback in proven)
    first = next(filter(None, ends), None)
    if first is None or first.status is ChainStatus.CANCELLED:
        return None
    is_earlier = first.elapsed_s + CLOCKS_APART_S < record.elapsed_s
    return first if is_earlier else None


def _elapsed_s(
    job: Job, called_s: float, callback: CallbackRecord, status: ChainStatus
) -> int | None:
    """The seconds that the job ran, from a callback; None if the job would have begun
    before it was submitted.

    No more than the paid minutes count: SLURM may let a job overrun its limit for as
    long as the administrator sets (KillWait, OverTimeLimit). A job that was cancelled
    before it began has no start, and some plugins send a wrong number of seconds for
    it: such a job ran 0 s.
    """
    begun_before_submission = (
        callback.duration_s > callback.received_s - called_s + CLOCKS_APART_S
    )
    if begun_before_submission:
        if status is ChainStatus.CANCELLED:
            return 0
        return None
    if billed_minutes(job.earlier_s + callback.duration_s) <= job.limit_min:
        return callback.duration_s
    return max(job.limit_min * SECONDS_PER_MINUTE - job.earlier_s, 0)


def _outcome(job: Job, called_s: float, callback: CallbackRecord) -> Outcome | None:
    status = ENDED.get(callback.status)
    if status is None:
        return None
    elapsed_s = _elapsed_s(job, called_s, callback, status)
    if elapsed_s is None:
        return None
    if status in WITHOUT_OWN_EXIT_STATUS:
        return Outcome(status=status, elapsed_s=elapsed_s)
    if (status, callback.exit_code) == (ChainStatus.FINISHED, 0):
        return Outcome(status=status, elapsed_s=elapsed_s)
    # The upstream plugin sends FINISHED also for node failures and similar ends.
    return Outcome(
        status=ChainStatus.FAILED,
        elapsed_s=elapsed_s,
        exit_status=callback.exit_code,
        reason=_failure_reason(callback.exit_code),
    )


def _failure_reason(exit_status: int) -> str:
    """Why the job failed, from its exit status: a callback has no field for SLURM's
    state. A script that fails has an exit status above 0, and only SLURM sets that of
    OUT_OF_MEMORY.
    """
    if exit_status == OUT_OF_MEMORY_STATUS:
        return "SLURM: OUT_OF_MEMORY"
    if exit_status == 0:
        return ENDED_BY_SLURM_ITSELF
    return describe_exit(exit_status)
