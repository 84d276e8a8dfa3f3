"""The effects that several rules open, and when they are due. Pure."""

from supervisor_tasks.execution.doubled_delay import doubled_delay_s
from supervisor_tasks.jobs.model import IN_SLURM, Effect, EffectKind, Job, State

FIRST_POLL_S = 0.5
MAX_POLL_S = 900.0
MIN_POLL_S = 30.0  # between polls of a job whose paid time is nearly or wholly used

DISPATCH_AGAIN_S = 5.0  # a message without a consequence for so long counts as lost

# from the moment a submission begins until sbatch must have ended
SUBMIT_TIMEOUT_S = 10.0
KILL_GRACE_S = 1  # from SIGTERM to SIGKILL for an sbatch that does not end
CLOCK_SKEW_S = 2.0  # for clocks that count whole seconds, and for the kill itself
MESSAGE_TIMEOUT_S = 10.0  # SLURM's default


def submission_window_s(message_timeout_s: float) -> float:
    """Seconds after the start of a submission until it can change nothing any more. By
    then sbatch was killed, and slurmctld has taken or dropped what sbatch sent.
    """
    return SUBMIT_TIMEOUT_S + KILL_GRACE_S + message_timeout_s + CLOCK_SKEW_S


BEFORE_SECOND_SEARCH_S = submission_window_s(MESSAGE_TIMEOUT_S)


def next_poll(job: Job) -> Effect:
    """The next look at a job. The wait doubles each time, but the look comes no later
    than the paid time is used. So a job that is requeued right after this look, without
    a callback, has had no unpaid time at the next one.
    """
    doubled_s = doubled_delay_s(job.poll_count, FIRST_POLL_S, MAX_POLL_S)
    used_up_in_s = max(float(job.left_s), MIN_POLL_S)
    return Effect(EffectKind.POLL_SLURM, min(doubled_s, used_up_in_s))


def limit_to_apply(job: Job) -> tuple[Effect, ...]:
    """The effect that gives SLURM the job's time limit, if SLURM has another one."""
    is_in_slurm = job.state in IN_SLURM
    if not is_in_slurm or job.run_limit_min == job.applied_limit_min:
        return ()
    return (Effect(EffectKind.TOP_UP),)


def stop_slurm(job: Job) -> tuple[Effect, ...]:
    """The cancel of a job that is decided, if SLURM may still have it. After an unclear
    submission, it comes when nothing can arrive any more.
    """
    if job.outcome is not None:
        return ()
    if job.slurm_id is None:
        return stop_without_id(job)
    return (Effect(EffectKind.CANCEL),)


def stop_without_id(job: Job) -> tuple[Effect, ...]:
    """The cancel of a job that is decided and has no SLURM id in the ledger. Only the
    journal shows whether a submission of it ever began: the customer's login session
    may have denied that (jobs/cancel.py).
    """
    if job.slurm_id is not None:
        return ()
    if job.state is State.REFUSED:
        return ()  # what made it REFUSED has opened the effect
    if job.state is State.SUBMITTING:
        return (Effect(EffectKind.CANCEL, BEFORE_SECOND_SEARCH_S),)
    return (Effect(EffectKind.CANCEL),)
